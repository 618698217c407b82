-- Store what a user grants in advance.
-- KEYS     1 standing approval  2 the user's index
-- ARGV     1 now (ms)  2 id  3 what is granted  4 ends at (ms)  5 time that it is kept after its end (ms)
--          6 most that are kept of one user
-- RETURNS  {"granted"}         now, or before with the same content
--          {"other"}           granted before with other content; nothing changed
--          {"full"}            the user has as many as are kept; nothing changed
-- INVARIANT an id has one content for ever: a wish that is sent again adds no use (G2), and what was revoked stays so.
-- Atomic: of two replicas that get the same wish one would reset what the other's approval had been used for.
--@include now
local now = store_now(ARGV[1])
local known = redis.call('HGET', KEYS[1], 'request')
if known then
  if known == ARGV[3] then return {'granted'} end
  return {'other'}
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[6]) then return {'full'} end
local forgotten = tonumber(ARGV[4]) + tonumber(ARGV[5])
redis.call('HSET', KEYS[1], 'request', ARGV[3], 'made_at', now, 'ends_at', ARGV[4], 'taken', 0)
redis.call('PEXPIREAT', KEYS[1], forgotten)
redis.call('ZADD', KEYS[2], forgotten, ARGV[2])
local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
redis.call('PEXPIREAT', KEYS[2], last[2])
return {'granted'}
