-- A queue of events that wait for a subject or a session, in one hash, with an index of queues by deadline.
--
-- FIELDS  n          how many wait            first, next  range of positions
--         e:<seq>    "id deadline event"      i:<id>       its position, or "x" once it has expired
--         x:<id>     "deadline event", expired, until its outcome is written
-- INVARIANT  an id waits at most once, positions keep the order of arrival, an expired id never waits again (while the
--            hash lives), and a queue with n > 0 is in the index with a score not above its earliest deadline.
local function queue_size(queue)
  return tonumber(redis.call('HGET', queue, 'n') or '0')
end

-- The id that came first, or nil.
local function queue_head(queue)
  if queue_size(queue) == 0 then return nil end
  local first = tonumber(redis.call('HGET', queue, 'first'))
  local last = tonumber(redis.call('HGET', queue, 'next')) - 1
  for seq = first, last do
    local entry = redis.call('HGET', queue, 'e:' .. seq)
    if entry then
      if seq > first then redis.call('HSET', queue, 'first', seq) end
      return string.match(entry, '^(%S+)')
    end
  end
  return nil
end

-- "held" (also when it is there already), "expired" or "full".
local function queue_add(queue, index, name, id, deadline, keep, bound, event)
  local known = redis.call('HGET', queue, 'i:' .. id)
  if known == 'x' then return 'expired' end
  if known then return 'held' end
  if queue_size(queue) >= bound then return 'full' end
  local seq = tonumber(redis.call('HGET', queue, 'next') or '1')
  if seq == 1 then redis.call('HSET', queue, 'first', 1) end
  redis.call('HSET', queue, 'next', seq + 1, 'i:' .. id, seq, 'e:' .. seq, id .. ' ' .. deadline .. ' ' .. event)
  redis.call('HINCRBY', queue, 'n', 1)
  redis.call('ZADD', index, 'LT', deadline, name)
  if redis.call('PTTL', queue) < keep then redis.call('PEXPIRE', queue, keep) end
  return 'held'
end

local function queue_shrink(queue, index, name)
  if redis.call('HINCRBY', queue, 'n', -1) > 0 then return end
  redis.call('ZREM', index, name)
  if redis.call('HLEN', queue) <= 3 then redis.call('DEL', queue) end
end

-- Taken out because it was delivered; nothing when it does not wait.
local function queue_remove(queue, index, name, id)
  local seq = redis.call('HGET', queue, 'i:' .. id)
  if not seq or seq == 'x' then return end
  redis.call('HDEL', queue, 'i:' .. id, 'e:' .. seq)
  queue_shrink(queue, index, name)
end

-- "expired" and the event when its deadline is over, else "kept", or "gone" when it does not wait. It still counts
-- until queue_drop, so that the sweeper finds it again after a crash.
local function queue_expire(queue, index, name, id, now)
  local seq = redis.call('HGET', queue, 'i:' .. id)
  if not seq then return 'gone', '' end
  if seq == 'x' then
    local left = redis.call('HGET', queue, 'x:' .. id)
    if left then return 'expired', left end
    return 'gone', ''
  end
  local deadline, event = string.match(redis.call('HGET', queue, 'e:' .. seq), '^%S+ (%d+) (.*)$')
  if tonumber(deadline) > now then return 'kept', '' end
  redis.call('HDEL', queue, 'e:' .. seq)
  redis.call('HSET', queue, 'i:' .. id, 'x', 'x:' .. id, deadline .. ' ' .. event)
  return 'expired', deadline .. ' ' .. event
end

-- The outcome of an expired event is written: it counts no more, its mark stays.
local function queue_drop(queue, index, name, id)
  if redis.call('HDEL', queue, 'x:' .. id) == 0 then return end
  queue_shrink(queue, index, name)
  local first = tonumber(redis.call('HGET', queue, 'first') or '1')
  local last = tonumber(redis.call('HGET', queue, 'next') or '1') - 1
  local earliest = nil
  for seq = first, last do
    local entry = redis.call('HGET', queue, 'e:' .. seq)
    if entry then
      local deadline = tonumber(string.match(entry, '^%S+ (%d+)'))
      if not earliest or deadline < earliest then earliest = deadline end
    end
  end
  if earliest then redis.call('ZADD', index, 'XX', earliest, name) end
end
