-- A timer's hash, with an index of all timers of the partition and one of its session's, both by the next instant.
--
-- FIELDS  state  "pending", or how it ended    next  its next instant (ms)    def  what it is, as JSON
--         fired, skipped  how many instants
-- PARAMETERS keys.timer, keys.due (the partition's index), keys.pending (the session's); session and id name it
-- INVARIANT  a timer is in both indexes, with its next instant as score, exactly while it is pending; one that has
--            ended stays as a tombstone, without next and def, so that it is never set again while that lives.
local function timer_is_at(keys, instant)
  return redis.call('HGET', keys.timer, 'next') == instant
end

local function timer_end(keys, session, id, state, keep)
  redis.call('HDEL', keys.timer, 'next', 'def')
  redis.call('HSET', keys.timer, 'state', state)
  redis.call('PEXPIRE', keys.timer, keep)
  redis.call('ZREM', keys.due, session .. ' ' .. id)
  redis.call('ZREM', keys.pending, id)
end

-- To its next instant, or to its end where that is "". ttl: how long it lives when it never comes to that instant.
local function timer_move(keys, session, id, instant, ttl, keep)
  if instant == '' then
    timer_end(keys, session, id, 'done', keep)
    return
  end
  redis.call('HSET', keys.timer, 'state', 'pending', 'next', instant)
  redis.call('PEXPIRE', keys.timer, ttl)
  redis.call('ZADD', keys.due, instant, session .. ' ' .. id)
  redis.call('ZADD', keys.pending, instant, id)
  if redis.call('PTTL', keys.pending) < tonumber(ttl) then redis.call('PEXPIRE', keys.pending, ttl) end
end
