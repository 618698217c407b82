-- park(parked, order, ends, id, packed, header, ends_at, now): keep a message until it may go on, behind those that are
-- kept already. Keeping it again changes neither its place nor its end.
local function park(parked, order, ends, id, packed, header, ends_at, now)
  if redis.call('HEXISTS', parked, id) == 1 then return end
  local last = redis.call('ZRANGE', order, -1, -1, 'WITHSCORES')[2]
  redis.call('HSET', parked, id, packed, 'h:' .. id, header)
  redis.call('ZADD', order, math.max(now, tonumber(last or '0') + 1), id)
  redis.call('ZADD', ends, ends_at, id)
end
