-- Leave a small tombstone of an operation that can no longer be claimed.
-- KEYS     1 operation  2 trim
-- ARGV     1 now (ms)  2 member of trim  3 time until the next look at what is not finished (ms)
-- RETURNS  {"trimmed"} {"later", state} {"absent"}
-- INVARIANT the key stays known with its state, so that an old duplicate is never a new key (G4).
-- Atomic, since a claim of a released key may come between the look and the removal.
--@include now
local now = store_now(ARGV[1])
local old = redis.call('HMGET', KEYS[1], 'state', 'not_after')
if not old[1] then
  redis.call('ZREM', KEYS[2], ARGV[2])
  return {'absent'}
end
if old[1] == 'pending' or old[1] == 'unknown' or now <= tonumber(old[2]) then
  redis.call('ZADD', KEYS[2], now + tonumber(ARGV[3]), ARGV[2])
  return {'later', old[1]}
end
redis.call('HDEL', KEYS[1], 'args', 'result', 'context', 'owner', 'lease_until')
redis.call('ZREM', KEYS[2], ARGV[2])
return {'trimmed'}
