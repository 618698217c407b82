-- Register a subject with the session whose operation made it, once.
-- KEYS     1 subject  2 held  3 heldindex
-- ARGV     1 subject's text  2 session  3 operation  4 time that a subject lives (ms)
-- RETURNS  {"registered", n}  n held events are due for release
--          {"same", n}        it was this session's before
--          {"clash", session} it is another session's; nothing changed
-- INVARIANT a subject leads to one session for its whole life (written once).
-- Atomic: of two that register one subject, one has it, and what is held becomes due with it.
--@include held_queue
local known = redis.call('GET', KEYS[1])
local session = known and string.match(known, '^(%S+)')
if session and session ~= ARGV[2] then
  return {'clash', session}
end
if not known then
  redis.call('SET', KEYS[1], ARGV[2] .. ' ' .. ARGV[3], 'PX', ARGV[4])
end
local held = queue_size(KEYS[2])
if held > 0 then
  redis.call('ZADD', KEYS[3], 'XX', 0, ARGV[1])
end
return {known and 'same' or 'registered', held}
