-- Give an admitted event its number in its session's inbox, with its doorbell.
-- KEYS     1 owner  2 number  3 inbox  4 outcome  5 sessions  6 outbox messages  7 outbox due  8 waiting
--          9 waitingindex
-- ARGV     1 now (ms)  2 session  3 input id  4 sealed input as JSON  5 its number  6 time that a session lives (ms)
--          7 time that the outcome is kept (ms)  8 bound of the outbox  9 outbox count, then pairs (id, packed)
-- RETURNS  {"appended", n} {"already", n} {"absent", 0} {"number", n} {"full", 0}: see append_input
--          {"behind", 0}  events that came before the session was made wait to be appended first
-- INVARIANT as append_input; and what waited for the session is numbered before what came after it (G5).
-- Atomic: number, input, mark and doorbell exist together or not at all.
--@include append_input
--@include held_queue
--@include outbox
--@include evidence
local head = queue_head(KEYS[8])
if head and head ~= ARGV[3] and redis.call('EXISTS', KEYS[1]) == 1
  and redis.call('HEXISTS', KEYS[4], ARGV[3]) == 0 then
  return {'behind', 0}
end
local tag, number = append_input(
  { owner = KEYS[1], number = KEYS[2], inbox = KEYS[3], outcome = KEYS[4], outbox = KEYS[6] },
  {
    id = ARGV[3], session = ARGV[2], packed = ARGV[4], number = tonumber(ARGV[5]),
    ttl = tonumber(ARGV[6]), keep = tonumber(ARGV[7]), bound = tonumber(ARGV[8]),
  })
if tag == 'appended' then
  redis.call('PEXPIRE', KEYS[1], ARGV[6])
  redis.call('ZADD', KEYS[5], ARGV[1], ARGV[2])
  outbox_add(KEYS[6], KEYS[7], ARGV[1], 9)
  evidence_add(tonumber(ARGV[1]), 'appended')
end
if head and (tag == 'appended' or tag == 'already') then
  queue_remove(KEYS[8], KEYS[9], ARGV[2], ARGV[3])
end
return {tag, number}
