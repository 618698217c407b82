-- Keep a body that must not be acted on: a second one under a known id, or one whose envelope contradicts it.
-- KEYS     1 quarantine of the identity  2 quarantineindex
-- ARGV     1 now (ms)  2 field (start of the body's digest)  3 entry as JSON  4 most an identity may have
--          5 time that it lives (ms)  6 name in the index
-- RETURNS  {"stored"} {"known"} {"full"}
-- INVARIANT at most ARGV[4] bodies an identity, so that a sender cannot fill the store with one id (C076).
-- Atomic: the count and the write.
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
  return {'known'}
end
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then
  return {'full'}
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('ZADD', KEYS[2], ARGV[1], ARGV[6])
return {'stored'}
