-- Let calls go on that were kept and are paused no more, or whose time is over: in the order in which they came.
-- KEYS     1 pauses  2 parked  3 parkedorder  4 parkedends  5 outbox messages  6 outbox due
-- ARGV     1 now (ms)  2 look behind this place  3 most to look at
-- RETURNS  {"looked", place or "", then triples (call, session, packed)}   the place to go on from; those that go on
-- INVARIANT a call is kept, or in the outbox with all that it needs: nothing between, nothing lost (G8). Of one
--          session none overtakes another of the same pause.
-- Atomic, since a call that was taken and not stored elsewhere would be lost with its replica.
--@include now
--@include paused
local now = store_now(ARGV[1])
local reply = {'looked', ''}
local function go(id)
  local packed, header = unpack(redis.call('HMGET', KEYS[2], id, 'h:' .. id))
  redis.call('HDEL', KEYS[2], id, 'h:' .. id)
  redis.call('ZREM', KEYS[3], id)
  redis.call('ZREM', KEYS[4], id)
  if not packed then return end
  redis.call('HSET', KEYS[5], id, packed)
  redis.call('ZADD', KEYS[6], now, id)
  reply[#reply + 1] = id
  reply[#reply + 1] = string.match(header, '^%S+ (%S+)')
  reply[#reply + 1] = packed
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', '(' .. now, 'LIMIT', 0, ARGV[3])) do go(id) end
local found = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. ARGV[2], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3])
for i = 1, #found, 2 do
  local tool, session, origin = string.match(redis.call('HGET', KEYS[2], 'h:' .. found[i]) or '', '^(%S+) (%S+) ?(.*)$')
  if not tool or not paused_by(KEYS[1], tool, session, origin) then go(found[i]) end
  reply[2] = found[i + 1]
end
if #found < 2 * tonumber(ARGV[3]) then reply[2] = '' end
return reply
