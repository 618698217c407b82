-- Withdraw an operation that is not claimed: whatever arrives later under its key never runs.
-- KEYS     1 operation  2 session's index  3 outbox messages  4 outbox due
-- ARGV     1 now (ms)  2 operation  3 not_after (ms)  4 time that it outlives not_after (ms)  5 call
--          6 operation key  7 longest index  8 time to live of the index (ms)  9 outbox count, then pairs (id, packed)
-- RETURNS  {"withdrawn"}       now, or before
--          {"known", state, result, reason, call, operation, attempt, tool, "1" for a failure whose key is spent}
--                              it was claimed; nothing changed
-- INVARIANT a tombstone outlives not_after, so a late call finds it or is expired (G4).
-- Atomic, since a claim between look and tombstone would run what was said to be withdrawn.
--@include now
--@include outbox
--@include evidence
local now = store_now(ARGV[1])
local old = redis.call('HMGET', KEYS[1], 'state', 'result', 'reason', 'call', 'id', 'attempt', 'tool',
                       'resolved_by', 'released_until')
if old[1] == 'withdrawn' then return {'withdrawn'} end
local spent = old[1] == 'failed' and (old[8] or old[9]) and now > tonumber(old[9] or '0')
if old[1] and (old[1] ~= 'failed' or spent) then
  return {'known', old[1], old[2] or '', old[3] or '', old[4] or '', old[5] or '', old[6] or 0, old[7] or '',
          spent and '1' or ''}
end
redis.call('HSET', KEYS[1], 'state', 'withdrawn', 'id', ARGV[2], 'call', ARGV[5], 'not_after', ARGV[3],
           'finished_at', now)
redis.call('PEXPIREAT', KEYS[1], math.max(now, tonumber(ARGV[3])) + tonumber(ARGV[4]))
redis.call('ZADD', KEYS[2], now, ARGV[2] .. ':' .. ARGV[6])
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -1 - tonumber(ARGV[7]))
redis.call('PEXPIRE', KEYS[2], ARGV[8])
outbox_add(KEYS[3], KEYS[4], now, 9)
evidence_add(now, 'withdrawn')
return {'withdrawn'}
