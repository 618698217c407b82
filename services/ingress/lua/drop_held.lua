-- Forget the body of an expired event, after its outcome was written elsewhere. Its mark stays.
-- KEYS     1 held  2 heldindex
-- ARGV     1 subject's text  2 input id
-- RETURNS  {"dropped", n}  n events still wait
-- INVARIANT an expired event is found by the sweeper until this was called.
-- Atomic: queue, count and index agree.
--@include held_queue
queue_drop(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
return {'dropped', queue_size(KEYS[1])}
