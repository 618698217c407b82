-- Take back what a user granted in advance.
-- KEYS     1 standing approval  2 the user's index
-- ARGV     1 now (ms)  2 id  3 time that it is kept after its end (ms)
-- RETURNS  {"revoked"}         now or before
--          {"absent"}
-- INVARIANT after this no use is reserved any more. What was reserved before is decided by the door, and shown.
-- Atomic: a reservation between look and mark would be a use of what was said to be revoked.
--@include now
local now = store_now(ARGV[1])
local known = redis.call('HMGET', KEYS[1], 'request', 'revoked_at')
if not known[1] then return {'absent'} end
if known[2] then return {'revoked'} end
local forgotten = now + tonumber(ARGV[3])
redis.call('HSET', KEYS[1], 'revoked_at', now)
-- Never later than it would have been forgotten anyway: what ended long ago is not kept anew.
if redis.call('PTTL', KEYS[1]) > tonumber(ARGV[3]) then
  redis.call('PEXPIREAT', KEYS[1], forgotten)
  redis.call('ZADD', KEYS[2], forgotten, ARGV[2])
end
return {'revoked'}
