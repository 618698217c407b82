-- Store an operation's outcome with the messages that tell of it.
-- KEYS     1 operation  2 lease  3 unknown  4 lookup  5 outbox messages  6 outbox due
-- ARGV     1 now (ms)  2 owner token  3 state  4 result  5 reason  6 member of lease, unknown and lookup
--          7 time that it outlives not_after (ms)  8 "1" where the destination can be asked
--          9 outbox count, then pairs (id, packed)
-- RETURNS  {"recorded"}        now, or before by this owner with this state
--          {"fenced", state}   somebody else holds it or has finished it; nothing changed
-- INVARIANT a holder that comes back late never overwrites its successor, and an outcome is stored before it is told
--          (G4, G8). What is unknown has no time to live.
-- Atomic, since an outcome without its messages would never be told, and messages without it could be untrue.
--@include now
--@include outbox
--@include evidence
local now = store_now(ARGV[1])
local old = redis.call('HMGET', KEYS[1], 'state', 'owner', 'not_after')
if old[2] ~= ARGV[2] then return {'fenced', old[1] or 'absent'} end
if old[1] == ARGV[3] then return {'recorded'} end
if old[1] ~= 'pending' then return {'fenced', old[1]} end
redis.call('HSET', KEYS[1], 'state', ARGV[3], 'result', ARGV[4], 'reason', ARGV[5], 'finished_at', now)
redis.call('ZREM', KEYS[2], ARGV[6])
if ARGV[3] == 'unknown' then
  redis.call('ZADD', KEYS[3], now, ARGV[6])
  if ARGV[8] == '1' then redis.call('ZADD', KEYS[4], now, ARGV[6]) end
else
  redis.call('PEXPIREAT', KEYS[1], math.max(now, tonumber(old[3])) + tonumber(ARGV[7]))
end
outbox_add(KEYS[5], KEYS[6], now, 9)
evidence_add(now, 'recorded')
return {'recorded'}
