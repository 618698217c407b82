-- Commit one decision: state, lines, history, outcomes, trimmed inputs, deadline and outgoing messages at once.
-- KEYS     1 state  2 timeline  3 history  4 inbox  5 deadline  6 outbox messages  7 outbox due  8… outcome buckets
-- ARGV     1 version read  2 commit id  3 state  4 now (ms)  5 deadline (ms, or "")  6 session  7 time to live (ms)
--          8 lines kept  9 history kept  then counted lists: lines; history; trimmed numbers;
--          outcomes as (key index, input id, value); outbox as (id, packed)
-- RETURNS  {"committed", version} or {"conflict", version stored}
-- INVARIANT the version names the state that the decision was made from; of two owners one commits (G5).
--          Nothing is in the outbox that was not committed with the state that caused it (G8).
-- Atomic: any part without the others is a lost message, a repeated turn or an untold outcome.
--@include outbox
local stored = redis.call('HMGET', KEYS[1], 'v', 'c')
local version = tonumber(stored[1] or '0')
local expected = tonumber(ARGV[1])
if version == expected + 1 and stored[2] == ARGV[2] then
  return {'committed', version}
end
if version ~= expected then
  return {'conflict', version}
end
local ttl = ARGV[7]
redis.call('HSET', KEYS[1], 'v', expected + 1, 'c', ARGV[2], 'd', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ttl)
local at = 10
local function push(key, kept)
  local n = tonumber(ARGV[at])
  for i = at + 1, at + n do
    redis.call('RPUSH', key, ARGV[i])
  end
  if n > 0 then
    redis.call('LTRIM', key, -tonumber(kept), -1)
    redis.call('PEXPIRE', key, ttl)
  end
  at = at + n + 1
end
push(KEYS[2], ARGV[8])
push(KEYS[3], ARGV[9])
local trimmed = tonumber(ARGV[at])
for i = at + 1, at + trimmed do
  redis.call('HDEL', KEYS[4], ARGV[i])
end
at = at + trimmed + 1
local outcomes = tonumber(ARGV[at])
at = at + 1
for i = 1, outcomes do
  local bucket = KEYS[tonumber(ARGV[at])]
  redis.call('HSET', bucket, ARGV[at + 1], ARGV[at + 2])
  if redis.call('PTTL', bucket) < 0 then -- its day was over: whoever appended set the span, we only end it
    redis.call('PEXPIRE', bucket, ttl)
  end
  at = at + 3
end
if ARGV[5] == '' then
  redis.call('ZREM', KEYS[5], ARGV[6])
else
  redis.call('ZADD', KEYS[5], ARGV[5], ARGV[6])
end
outbox_add(KEYS[6], KEYS[7], tonumber(ARGV[4]), at)
return {'committed', expected + 1}
