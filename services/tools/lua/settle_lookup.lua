-- Store what a destination said of an operation whose outcome is unknown, with the messages that tell of it.
-- KEYS     1 operation  2 unknown  3 lookup  4 outbox messages  5 outbox due
-- ARGV     1 now (ms)  2 state, committed or failed  3 result  4 reason  5 who says so  6 member of unknown and lookup
--          7 time that it outlives not_after (ms)  8 when it was asked (ms, store time)
--          9 time after the lease in which a holder's call may still arrive (ms)
--          10 until when a failure releases the key (ms), 0 for never  11 outbox count, then pairs (id, packed)
-- RETURNS  {"resolved"}        now, or before to this state by the same
--          {"early", at}       asked before "none" proves anything: not before `at`; nothing changed
--          {"known", state}    it is not unknown; nothing changed
-- INVARIANT what is unknown is settled once, and a state only advances. "None" proves a failure only when it was asked
--          after the lease and the tool's timeout were over: until then a stopped holder may wake and send (G4). The
--          failure releases the key only while the destination honours it, so that a holder that wakes after all
--          does nothing twice.
-- Atomic, since an operator or another replica may settle it too, and an outcome must not be told untold or twice.
--@include now
--@include outbox
--@include evidence
local now = store_now(ARGV[1])
local old = redis.call('HMGET', KEYS[1], 'state', 'resolved_by', 'not_after', 'lease_until')
if old[1] == ARGV[2] and old[2] == ARGV[5] then return {'resolved'} end
if old[1] ~= 'unknown' then return {'known', old[1] or 'absent'} end
local proves = tonumber(old[4] or '0') + tonumber(ARGV[9])
if ARGV[2] == 'failed' and tonumber(ARGV[8]) <= proves then return {'early', proves} end
redis.call('HSET', KEYS[1], 'state', ARGV[2], 'result', ARGV[3], 'reason', ARGV[4], 'resolved_by', ARGV[5],
           'finished_at', now)
if ARGV[2] == 'failed' then redis.call('HSET', KEYS[1], 'released_until', ARGV[10]) end
redis.call('HDEL', KEYS[1], 'asker')
redis.call('ZREM', KEYS[2], ARGV[6])
redis.call('ZREM', KEYS[3], ARGV[6])
redis.call('PEXPIREAT', KEYS[1], math.max(now, tonumber(old[3])) + tonumber(ARGV[7]))
outbox_add(KEYS[4], KEYS[5], now, 11)
evidence_add(now, 'resolved')
return {'resolved'}
