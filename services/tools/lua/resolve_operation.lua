-- An operator says what became of an operation whose outcome is unknown.
-- KEYS     1 operation  2 unknown  3 lookup  4 outbox messages  5 outbox due
-- ARGV     1 now (ms)  2 state  3 note  4 operator  5 member of unknown and lookup  6 time that it outlives not_after (ms)
--          7 outbox count, then pairs (id, packed)
-- RETURNS  {"resolved"}        now, or before by this operator to this state
--          {"known", state}    it is not unknown; nothing changed
--          {"absent"}
-- INVARIANT only what is unknown can be resolved, once (G4). A failure that was resolved does not release the key:
--          an operator's word is no proof that nothing was sent.
-- Atomic, since two operators must not both be told that their word counted.
--@include now
--@include outbox
--@include evidence
local now = store_now(ARGV[1])
local old = redis.call('HMGET', KEYS[1], 'state', 'resolved_by', 'not_after')
if not old[1] then return {'absent'} end
if old[1] == ARGV[2] and old[2] == ARGV[4] then return {'resolved'} end
if old[1] ~= 'unknown' then return {'known', old[1]} end
redis.call('HSET', KEYS[1], 'state', ARGV[2], 'reason', ARGV[3], 'resolved_by', ARGV[4], 'finished_at', now)
redis.call('ZREM', KEYS[2], ARGV[5])
redis.call('ZREM', KEYS[3], ARGV[5])
redis.call('PEXPIREAT', KEYS[1], math.max(now, tonumber(old[3])) + tonumber(ARGV[6]))
outbox_add(KEYS[4], KEYS[5], now, 7)
evidence_add(now, 'resolved')
return {'resolved'}
