-- Pass over instants of a timer, and tell its session.
-- KEYS     1 timer  2 timers  3 pendingtimers  4 outbox messages  5 outbox due
-- ARGV     1 now (ms)  2 session  3 timer's id  4 its next instant as the caller saw it (ms)
--          5 the instant after those skipped (ms), "" when there is none  6 how many are skipped
--          7 time that it lives (ms)  8 time that its tombstone lives (ms)  9 bound of the outbox
--          10 outbox count, then pairs (id, packed)
-- RETURNS  {"skipped"}  {"moved"} it is at another instant, or has ended: nothing changed  {"full"} the outbox is
-- INVARIANT an instant fires or is skipped, once: only who saw the timer's present instant moves it on.
-- Atomic: the instants pass and are told of together (G8).
--@include timer_state
--@include outbox
local keys = { timer = KEYS[1], due = KEYS[2], pending = KEYS[3] }
if not timer_is_at(keys, ARGV[4]) then
  return {'moved'}
end
if redis.call('HLEN', KEYS[4]) >= tonumber(ARGV[9]) then
  return {'full'}
end
redis.call('HINCRBY', KEYS[1], 'skipped', ARGV[6])
timer_move(keys, ARGV[2], ARGV[3], ARGV[5], ARGV[7], ARGV[8])
outbox_add(KEYS[4], KEYS[5], ARGV[1], 10)
return {'skipped'}
