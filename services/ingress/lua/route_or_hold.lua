-- Find the session of an event's subject, or hold the event until the subject is registered.
-- KEYS     1 subject  2 held  3 heldindex
-- ARGV     1 subject's text  2 input id  3 deadline (ms), 0 for "do not hold"  4 time that the queue lives (ms)
--          5 most that may wait  6 the event as JSON
-- RETURNS  {"session", session}  registered, and nothing is in front of it
--          {"held"} {"expired"} {"full"}  {"absent"} not registered and not to be held
-- INVARIANT of an event and the registration of its subject, one comes first: it is held and released, or it is routed.
-- Atomic: a look-up followed by a hold would lose an event that is held just after its release. What comes while held
-- events are being released queues behind them, so that order is kept (G5).
--@include held_queue
local known = redis.call('GET', KEYS[1])
if redis.call('HGET', KEYS[2], 'i:' .. ARGV[2]) == 'x' then
  return {'expired'}
end
if known and queue_size(KEYS[2]) == 0 then
  return {'session', string.match(known, '^(%S+)')}
end
if not known and tonumber(ARGV[3]) == 0 then
  return {'absent'}
end
return {queue_add(KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6])}
