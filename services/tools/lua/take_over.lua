-- Take a pending operation from a holder that is gone.
-- KEYS     1 operation  2 lease  3 pauses
-- ARGV     1 now (ms)  2 new owner token  3 lease (ms)  4 member of lease  5 owner known to be gone, or ""
--          6 "1" also while its sends are paused: nothing will be sent  7 time until the next look while paused (ms)
-- RETURNS  {"taken", operation, tool, arguments, call, context, attempt, keyed_from, now, origin}
--          {"held", lease_until}    its holder may be alive; nothing changed
--          {"finished", state}      it is not pending; only the lease's entry is gone
--          {"paused", pause, tool, keyed_from, now}   its sends are paused; nothing changed but the next look
-- INVARIANT of a holder and its successors the last one alone can record (G4).
-- Atomic, since two sweepers must not both send.
--@include now
--@include paused
--@include evidence
local now = store_now(ARGV[1])
local old = redis.call('HMGET', KEYS[1], 'state', 'owner', 'lease_until', 'id', 'tool', 'args', 'call', 'context',
                       'attempt', 'claimed_at', 'origin', 'keyed_from')
if old[1] ~= 'pending' then
  redis.call('ZREM', KEYS[2], ARGV[4])
  return {'finished', old[1] or 'absent'}
end
if old[2] ~= ARGV[2] then
  if old[2] ~= ARGV[5] and tonumber(old[3]) > now then return {'held', old[3]} end
  local pause = ARGV[6] ~= '1' and paused_by(KEYS[3], old[5], string.match(ARGV[4], '^[^:]+'), old[11] or '')
  if pause then
    redis.call('ZADD', KEYS[2], now + tonumber(ARGV[7]), ARGV[4]) -- so that others who wait are looked at too
    return {'paused', pause, old[5], old[12] or old[10], now}
  end
  local lease_until = now + tonumber(ARGV[3])
  redis.call('HSET', KEYS[1], 'owner', ARGV[2], 'lease_until', lease_until)
  redis.call('ZADD', KEYS[2], lease_until, ARGV[4])
  evidence_add(now, 'taken')
end
return {'taken', old[4], old[5], old[6], old[7], old[8], old[9], old[12] or old[10], now, old[11] or ''}
