-- Say what became of a reserved use: spent by its operation, or free again.
-- KEYS     1 uses whose claim is not known yet  2 standing approval
-- ARGV     1 name of the use: session:key  2 its member among those not known yet  3 spent, freed or void
--          4 call that will not claim by it any more, for freed
-- RETURNS  {"spent"} {"freed"}         now or before
--          {"held"}                    another call may still claim by it; only this one is gone
--          {"absent"}                  there is no such use
-- INVARIANT what is spent stays spent. A use is free again only when no call can claim by it: each has said so itself
--          (freed), or the operation's key is closed for ever (void).
-- Atomic: a call that reserves between look and removal would have its effect without a use.
local name = ARGV[1]
local calls = redis.call('HGET', KEYS[2], 'c:' .. name)
if not calls then
  redis.call('ZREM', KEYS[1], ARGV[2])
  return {'absent'}
end
if calls == 'spent' or ARGV[3] == 'spent' then
  redis.call('HSET', KEYS[2], 'c:' .. name, 'spent')
  redis.call('HDEL', KEYS[2], 'n:' .. name)
  redis.call('ZREM', KEYS[1], ARGV[2])
  return {'spent'}
end
if ARGV[3] == 'freed' then
  local at, last = string.find(calls, ' ' .. ARGV[4] .. ' ', 1, true)
  if at then calls = string.sub(calls, 1, at) .. string.sub(calls, last + 1) end
  if calls ~= ' ' then
    redis.call('HSET', KEYS[2], 'c:' .. name, calls)
    return {'held'}
  end
end
redis.call('HDEL', KEYS[2], 'c:' .. name, 'u:' .. name, 'n:' .. name, 'f:' .. name)
redis.call('HINCRBY', KEYS[2], 'taken', -1)
redis.call('ZREM', KEYS[1], ARGV[2])
return {'freed'}
