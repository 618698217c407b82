-- Count one attempt of a message before it is handled.
-- KEYS     1 attempts
-- ARGV     1 time to live (ms)
-- RETURNS  {"attempt", n}
-- INVARIANT the count is stored before the attempt, so a message that kills its process is counted too.
-- Atomic: the count without its time to live would stay for ever.
local n = redis.call('INCR', KEYS[1])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return {'attempt', n}
