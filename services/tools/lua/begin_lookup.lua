-- Begin one look-up of an operation whose outcome is unknown, and say durably when the next one is.
-- KEYS     1 operation  2 lookup  3 pauses
-- ARGV     1 now (ms)  2 member of lookup  3 token of this look-up  4 time to ask (ms)
--          5 wait after the first look-up (ms), doubled after each  6 longest wait (ms)  7 "1" to ask before it is due
--          8 tool that asks  9 time until the next look while paused (ms)
-- RETURNS  {"ask", operation, tool, arguments, call, context, attempt, keyed_from, now, origin}
--          {"later", next}      it is asked by somebody, or not due, or asking is paused
--          {"known", state}     it is not unknown; it is looked up no more
-- INVARIANT a look-up that ends without a word, its process included, is followed by another, ever more seldom. One of
--          several replicas asks.
-- Atomic, since two replicas would both ask, or neither after a crash.
--@include now
--@include paused
local now = store_now(ARGV[1])
local old = redis.call('HMGET', KEYS[1], 'state', 'looked_up', 'asker', 'id', 'tool', 'args', 'call', 'context',
                       'attempt', 'claimed_at', 'origin', 'keyed_from')
if old[1] ~= 'unknown' then
  redis.call('ZREM', KEYS[2], ARGV[2])
  return {'known', old[1] or 'absent'}
end
if paused_by(KEYS[3], ARGV[8], string.match(ARGV[2], '^[^:]+'), '') then
  local again = now + tonumber(ARGV[9])
  redis.call('ZADD', KEYS[2], 'XX', again, ARGV[2])
  return {'later', again}
end
if old[3] ~= ARGV[3] then
  local next_at = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[2]) or '0')
  if next_at > now and ARGV[7] ~= '1' then return {'later', next_at} end
  local before = tonumber(old[2] or '0')
  local wait = math.min(tonumber(ARGV[5]) * 2 ^ math.min(before, 30), tonumber(ARGV[6]))
  redis.call('HSET', KEYS[1], 'looked_up', before + 1, 'asker', ARGV[3])
  redis.call('ZADD', KEYS[2], now + tonumber(ARGV[4]) + wait, ARGV[2])
end
return {'ask', old[4], old[5], old[6], old[7], old[8], old[9], old[12] or old[10], now, old[11] or ''}
