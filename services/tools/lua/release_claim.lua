-- Undo a claim of which nothing was sent, and keep its call as if it had come while paused.
-- KEYS     1 operation  2 lease  3 trim  4 parked  5 parkedorder  6 parkedends  7 outbox messages  8 outbox due
--          then n binding buckets, one a seal; then, for an action's step: the action
-- ARGV     1 now (ms)  2 owner token  3 member of lease and trim  4 operation key  5 call
--          6 the call as it lies in an outbox  7 its tool, session and origin  8 when it ends (ms)
--          9 step of the action or ""  10 time that a released key outlives not_after (ms)  11 reason
--          12 count n of seals, then n input ids, then outbox count and pairs (id, packed)
-- RETURNS  {"released"}        now, or before
--          {"fenced", state}   somebody else holds it or has finished it; nothing changed
-- INVARIANT what was not sent costs nothing: neither a step of its inputs, nor its grant, nor its key (G3, G4, G6). The
--          bindings of turn and inputs stay as they were written.
-- Atomic, since a claim that is gone without its call being kept would lose the step.
--@include now
--@include outbox
--@include evidence
--@include parked
local now = store_now(ARGV[1])
if redis.call('HEXISTS', KEYS[4], ARGV[5]) == 1 then return {'released'} end
local old = redis.call('HMGET', KEYS[1], 'state', 'owner', 'attempt', 'not_after')
if old[1] ~= 'pending' or old[2] ~= ARGV[2] then return {'fenced', old[1] or 'absent'} end
local seals = tonumber(ARGV[12])
for i = 1, seals do
  local root, steps = string.match(redis.call('HGET', KEYS[8 + i], ARGV[12 + i]) or '', '^(%S+) (%d+)$')
  if root then redis.call('HSET', KEYS[8 + i], ARGV[12 + i], root .. ' ' .. math.max(0, tonumber(steps) - 1)) end
end
if ARGV[9] ~= '' then
  local action = KEYS[9 + seals]
  if redis.call('HGET', action, 's' .. ARGV[9]) == ARGV[4] then redis.call('HDEL', action, 's' .. ARGV[9], 'done') end
end
if tonumber(old[3]) <= 1 then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[3], ARGV[3])
  evidence_add(now, 'forgotten')
else -- it was released before, by a failure that was proved before sending: so it is again
  redis.call('HSET', KEYS[1], 'state', 'failed', 'reason', ARGV[11], 'call', '', 'owner', '', 'finished_at', now)
  redis.call('PEXPIREAT', KEYS[1], math.max(now, tonumber(old[4])) + tonumber(ARGV[10]))
  evidence_add(now, 'released')
end
redis.call('ZREM', KEYS[2], ARGV[3])
park(KEYS[4], KEYS[5], KEYS[6], ARGV[5], ARGV[6], ARGV[7], ARGV[8], now)
outbox_add(KEYS[7], KEYS[8], now, 13 + seals)
return {'released'}
