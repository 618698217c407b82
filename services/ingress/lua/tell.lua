-- Commit messages that follow from no other change: a notice to operators, the copy of an unreadable delivery.
-- KEYS     1 outbox messages  2 outbox due
-- ARGV     1 now (ms)  2 outbox count, then pairs (id, packed)
-- RETURNS  {"told"}
-- INVARIANT a message is stored before what led to it is acknowledged (G8).
-- Atomic: all of them or none.
--@include outbox
outbox_add(KEYS[1], KEYS[2], tonumber(ARGV[1]), 2)
return {'told'}
