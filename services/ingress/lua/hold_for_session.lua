-- Hold an event for a session that does not exist yet, or that has such events in front of it.
-- KEYS     1 owner  2 waiting  3 waitingindex
-- ARGV     1 session  2 input id  3 deadline (ms)  4 time that the queue lives (ms)  5 most that may wait
--          6 the event as JSON
-- RETURNS  {"open"}  the session exists and nothing waits: append it
--          {"held"} {"expired"} {"full"}
-- INVARIANT an event waits only while its session is absent or while others wait in front of it.
-- Atomic: a session created between a look and the hold would leave the event behind.
--@include held_queue
if redis.call('EXISTS', KEYS[1]) == 1 and queue_size(KEYS[2]) == 0 then
  return {'open'}
end
return {queue_add(KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6])}
