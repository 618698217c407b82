-- Take a held event out of its queue, after it was appended to its session.
-- KEYS     1 held  2 heldindex
-- ARGV     1 subject's text  2 input id
-- RETURNS  {"released", n}  n events still wait
-- INVARIANT an event leaves the queue only when it is in an inbox: a crash before that leaves it here.
-- Atomic: queue, count and index agree.
--@include held_queue
queue_remove(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
return {'released', queue_size(KEYS[1])}
