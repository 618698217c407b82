-- Let an event expire that waited for a session, and write its outcome.
-- KEYS     1 owner  2 waiting  3 waitingindex  4 outcome
-- ARGV     1 session  2 input id  3 now (ms)  4 time that the outcome is kept (ms)
-- RETURNS  {"expired", event} {"kept"} {"gone"}  {"created"} the session exists: it will be released instead
-- INVARIANT an event expires or is released, never both (G1): the owner decides, here.
-- Atomic: outcome and removal exist together.
--@include held_queue
if redis.call('EXISTS', KEYS[1]) == 1 then
  return {'created'}
end
local tag, event = queue_expire(KEYS[2], KEYS[3], ARGV[1], ARGV[2], tonumber(ARGV[3]))
if tag == 'expired' then
  redis.call('HSET', KEYS[4], ARGV[2], ARGV[1] .. ' 0 held_expired')
  if redis.call('PTTL', KEYS[4]) < tonumber(ARGV[4]) then
    redis.call('PEXPIRE', KEYS[4], ARGV[4])
  end
  queue_drop(KEYS[2], KEYS[3], ARGV[1], ARGV[2])
end
return {tag, event}
