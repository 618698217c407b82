-- Set a timer, once; or refuse it, once, and tell its session.
-- KEYS     1 timer  2 timers  3 pendingtimers  4 owner  5 outbox messages  6 outbox due
-- ARGV     1 now (ms)  2 session  3 timer's id  4 what it is, as JSON  5 first instant (ms), "" for "refuse it"
--          6 most that a session may have pending  7 time that it lives (ms)  8 time that its tombstone lives (ms)
--          9 outbox count, then pairs (id, packed): what the session is told if it is refused
-- RETURNS  {"set"}  {"refused"}  {"known", state} it was set, stopped or refused before  {"absent"} no such session
-- INVARIANT a timer is set at most once: a repeat changes nothing, and neither does one that comes after its end.
-- Atomic: of many that are set at once no more than the cap are pending; a refusal and its message exist together.
--@include timer_state
--@include outbox
local keys = { timer = KEYS[1], due = KEYS[2], pending = KEYS[3] }
local state = redis.call('HGET', KEYS[1], 'state')
if state then
  return {'known', state}
end
if redis.call('EXISTS', KEYS[4]) == 0 then
  return {'absent'}
end
if ARGV[5] == '' or redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[6]) then
  timer_end(keys, ARGV[2], ARGV[3], 'refused', ARGV[8])
  outbox_add(KEYS[5], KEYS[6], ARGV[1], 9)
  return {'refused'}
end
redis.call('HSET', KEYS[1], 'def', ARGV[4])
timer_move(keys, ARGV[2], ARGV[3], ARGV[5], ARGV[7], ARGV[8])
return {'set'}
