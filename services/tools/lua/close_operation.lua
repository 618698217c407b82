-- Close the key of an operation that is not run: what it relies on has changed, or its owner has to be asked.
-- KEYS     1 operation  2 session's index  3 outbox messages  4 outbox due
-- ARGV     1 now (ms)  2 state, precondition_failed or needs_consent  3 operation  4 fingerprint  5 tool  6 call
--          7 result  8 reason  9 not_after (ms)  10 time that it outlives not_after (ms)  11 operation key
--          12 longest index  13 time to live of the index (ms)  14 outbox count, then pairs (id, packed)
-- RETURNS  {"closed"}          now, or before to this state by this call
--          {"known"}           the key is known otherwise; nothing changed
-- INVARIANT what was told not to have run never runs under this key, whatever changes before the call comes again
--          (G2, G4). A key that was claimed is never closed; one that a failure proved before sending released is.
-- Atomic, since a claim between look and tombstone would run what was said not to.
--@include now
--@include outbox
--@include evidence
local now = store_now(ARGV[1])
local old = redis.call('HMGET', KEYS[1], 'state', 'call', 'resolved_by', 'released_until')
if old[1] == ARGV[2] and old[2] == ARGV[6] then return {'closed'} end
if old[1] and (old[1] ~= 'failed' or old[3] or old[4]) then return {'known'} end
redis.call('HSET', KEYS[1], 'state', ARGV[2], 'id', ARGV[3], 'fingerprint', ARGV[4], 'tool', ARGV[5], 'call', ARGV[6],
           'result', ARGV[7], 'reason', ARGV[8], 'not_after', ARGV[9], 'finished_at', now)
redis.call('PEXPIREAT', KEYS[1], math.max(now, tonumber(ARGV[9])) + tonumber(ARGV[10]))
redis.call('ZADD', KEYS[2], now, ARGV[3] .. ':' .. ARGV[11])
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -1 - tonumber(ARGV[12]))
redis.call('PEXPIRE', KEYS[2], ARGV[13])
outbox_add(KEYS[3], KEYS[4], now, 14)
evidence_add(now, 'closed')
return {'closed'}
