-- outbox_add(messages, due, now, first): ARGV[first] holds a count n, then n pairs (id, packed message).
-- Adding again under the same id changes nothing but its time. Returns the index after the last pair.
local function outbox_add(messages, due, now, first)
  local n = tonumber(ARGV[first])
  for i = 0, n - 1 do
    local id = ARGV[first + 1 + 2 * i]
    redis.call('HSET', messages, id, ARGV[first + 2 + 2 * i])
    redis.call('ZADD', due, now, id)
  end
  return first + 1 + 2 * n
end
