-- End a timer, also one that is not set yet.
-- KEYS     1 timer  2 timers  3 pendingtimers
-- ARGV     1 session  2 timer's id  3 how it ended  4 time that its tombstone lives (ms)
-- RETURNS  {"stopped"} it was pending  {"early"} it was not set yet and never will be  {"known", state} it had ended
-- INVARIANT what was stopped never fires again, however late it is set: the tombstone is written even before it.
-- Atomic: a firing between a look and the end would come after the stop.
--@include timer_state
local state = redis.call('HGET', KEYS[1], 'state')
if state and state ~= 'pending' then
  return {'known', state}
end
timer_end({ timer = KEYS[1], due = KEYS[2], pending = KEYS[3] }, ARGV[1], ARGV[2], ARGV[3], ARGV[4])
return {state and 'stopped' or 'early'}
