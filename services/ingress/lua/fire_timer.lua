-- Give an instant of a timer its number in its session's inbox, with its doorbell, and move the timer on.
-- KEYS     1 timer  2 timers  3 pendingtimers  4 owner  5 number  6 inbox  7 outcome  8 sessions
--          9 outbox messages  10 outbox due  11 waiting
-- ARGV     1 now (ms)  2 session  3 timer's id  4 its next instant as the caller saw it (ms)
--          5 the instant after this one (ms), "" when there is none  6 time that the timer lives (ms)
--          7 time that its tombstone lives (ms)  8 input id  9 sealed input as JSON  10 its number
--          11 time that a session lives (ms)  12 time that the outcome is kept (ms)  13 bound of the outbox
--          14 outbox count, then pairs (id, packed)
-- RETURNS  {"appended", n} {"already", n} {"number", n} {"full", 0}: see append_input
--          {"absent", 0}  the session is gone, and the timer with it
--          {"behind", 0}  events that came before the session was made go first
--          {"moved", 0}   it is at another instant, or has ended: nothing changed
-- INVARIANT no instant fires twice, with any number of replicas: only who saw the timer's present instant appends, and
-- what is appended moves the timer on.
-- Atomic: were the instant appended and the timer moved after, a crash between would leave it due; the other way
-- round it would be lost (G1, G2).
--@include timer_state
--@include append_input
--@include held_queue
--@include outbox
--@include evidence
local keys = { timer = KEYS[1], due = KEYS[2], pending = KEYS[3] }
if not timer_is_at(keys, ARGV[4]) then
  return {'moved', 0}
end
if queue_size(KEYS[11]) > 0 and redis.call('EXISTS', KEYS[4]) == 1 then
  return {'behind', 0}
end
local tag, number = append_input(
  { owner = KEYS[4], number = KEYS[5], inbox = KEYS[6], outcome = KEYS[7], outbox = KEYS[9] },
  {
    id = ARGV[8], session = ARGV[2], packed = ARGV[9], number = tonumber(ARGV[10]),
    ttl = tonumber(ARGV[11]), keep = tonumber(ARGV[12]), bound = tonumber(ARGV[13]),
  })
if tag == 'appended' then
  redis.call('PEXPIRE', KEYS[4], ARGV[11])
  redis.call('ZADD', KEYS[8], ARGV[1], ARGV[2])
  redis.call('HINCRBY', KEYS[1], 'fired', 1)
  outbox_add(KEYS[9], KEYS[10], ARGV[1], 14)
  evidence_add(tonumber(ARGV[1]), 'appended')
end
if tag == 'appended' or tag == 'already' then
  timer_move(keys, ARGV[2], ARGV[3], ARGV[5], ARGV[6], ARGV[7])
elseif tag == 'absent' then
  timer_end(keys, ARGV[2], ARGV[3], 'lost', ARGV[7])
end
return {tag, number}
