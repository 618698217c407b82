-- Take a held event as expired, when its subject is still unknown and its time is over.
-- KEYS     1 subject  2 held  3 heldindex
-- ARGV     1 subject's text  2 input id  3 now (ms)
-- RETURNS  {"expired", event}  its outcome is to be written, then drop_held
--          {"kept"} {"gone"}   {"registered"} it will be released instead
-- INVARIANT an event expires or is released, never both (G1): the subject decides, here.
-- Atomic: a subject registered between a look and the expiry would find nothing to release.
--@include held_queue
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HGET', KEYS[2], 'i:' .. ARGV[2]) ~= 'x' then
  return {'registered'}
end
local tag, event = queue_expire(KEYS[2], KEYS[3], ARGV[1], ARGV[2], tonumber(ARGV[3]))
return {tag, event}
