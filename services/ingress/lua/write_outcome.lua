-- Write what became of an event that is in no inbox.
-- KEYS     1 outcome
-- ARGV     1 input id  2 "session 0 outcome"  3 time that it is kept (ms)
-- RETURNS  {"written"} or {"known", outcome} when it has one
-- INVARIANT an event has one outcome (G1): the first stays.
-- Atomic: a look followed by a write could overwrite.
local known = redis.call('HGET', KEYS[1], ARGV[1])
if known and known ~= ARGV[2] then
  return {'known', known}
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return {'written'}
