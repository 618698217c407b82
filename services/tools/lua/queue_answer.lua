-- Tell what was decided without changing any operation: a refusal at the door, or a stored answer again.
-- KEYS     1 outbox messages  2 outbox due
-- ARGV     1 now (ms)  2 outbox count, then pairs (id, packed)
-- RETURNS  {"queued"}
-- INVARIANT nothing leaves that was not stored before (G8).
-- Atomic, since a message without its time would never be sent by the relay.
--@include now
--@include outbox
--@include evidence
local now = store_now(ARGV[1])
outbox_add(KEYS[1], KEYS[2], now, 2)
evidence_add(now, 'queued')
return {'queued'}
