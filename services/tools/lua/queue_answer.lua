-- Tell what was decided without changing any operation: a refusal at the door, or a stored answer again.
-- KEYS     1 outbox messages  2 outbox due
-- ARGV     1 now (ms)  2 outbox count, then pairs (id, packed)
-- RETURNS  {"queued"}
-- INVARIANT nothing leaves that was not stored before (G8).
-- Atomic, since a message without its time would never be sent by the relay.
--@include now
--@include outbox
outbox_add(KEYS[1], KEYS[2], store_now(ARGV[1]), 2)
return {'queued'}
