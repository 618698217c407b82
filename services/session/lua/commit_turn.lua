-- Commit one decision: state, lines, history, record, outcomes, trimmed inputs, deadline and outgoing messages at once.
-- KEYS     1 state  2 timeline  3 history  4 inbox  5 deadline  6 outbox messages  7 outbox due  8 record
--          9… outcome buckets
-- ARGV     1 version read  2 commit id  3 state  4 now (ms)  5 deadline (ms, or "")  6 session  7 time to live (ms)
--          8 lines kept  9 history kept  10 record kept  then counted lists: lines; history; record; trimmed numbers;
--          outcomes as (key index, input id, value); outbox as (id, packed)
-- RETURNS  {"committed", version} or {"conflict", version stored}
-- STATE    v version  c last commit  d state  e day (since 1970) on which the time to live was set
-- INVARIANT the version names the state that the decision was made from; of two owners one commits (G5).
--          Nothing is in the outbox that was not committed with the state that caused it (G8).
-- Atomic: any part without the others is a lost message, a repeated turn or an untold outcome.
--@include outbox
--@include evidence
local stored = redis.call('HMGET', KEYS[1], 'v', 'c', 'e')
local version = tonumber(stored[1] or '0')
local expected = tonumber(ARGV[1])
if version == expected + 1 and stored[2] == ARGV[2] then
  return {'committed', version}
end
if version ~= expected then
  return {'conflict', version}
end
local ttl = ARGV[7]
local today = math.floor(tonumber(ARGV[4]) / 86400000)
redis.call('HSET', KEYS[1], 'v', expected + 1, 'c', ARGV[2], 'd', ARGV[3], 'e', today)
local at = 11
local function push(key, kept)
  local n = tonumber(ARGV[at])
  local length = 0
  for i = at + 1, at + n, 1000 do -- a call takes a bounded number of arguments
    length = redis.call('RPUSH', key, unpack(ARGV, i, math.min(i + 999, at + n)))
  end
  if length > tonumber(kept) then
    redis.call('LTRIM', key, -tonumber(kept), -1)
  end
  if n > 0 and length == n then
    redis.call('PEXPIRE', key, ttl) -- it is new
  end
  at = at + n + 1
end
push(KEYS[2], ARGV[8])
push(KEYS[3], ARGV[9])
push(KEYS[8], ARGV[10])
if tonumber(stored[3]) ~= today then -- once a day is enough for a span of months
  for i = 1, 3 do
    redis.call('PEXPIRE', KEYS[i], ttl)
  end
  redis.call('PEXPIRE', KEYS[8], ttl)
end
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
evidence_add(tonumber(ARGV[4]), 'committed')
return {'committed', expected + 1}
