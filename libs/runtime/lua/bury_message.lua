-- Commit a message as dead: its copy for the dead queue goes into the outbox, its attempt count goes.
-- KEYS     1 attempts  2 outbox messages  3 outbox due
-- ARGV     1 now (ms)  2 outbox count, then pairs (id, packed)
-- RETURNS  {"buried"}
-- INVARIANT the copy is stored before the original is acknowledged, so a dead message is never lost (G1).
-- Atomic: a copy without the count's end would be buried twice after a crash.
--@include outbox
outbox_add(KEYS[2], KEYS[3], tonumber(ARGV[1]), 2)
redis.call('DEL', KEYS[1])
return {'buried'}
