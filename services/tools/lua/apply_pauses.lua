-- Bring a partition's copy of the pauses to a version of the list; what claims there reads it.
-- KEYS     1 pauses
-- ARGV     1 version  2 count n of pauses, then n fields, such as `tool:book`
-- RETURNS  {"applied", version}    now, or before; a newer one stands
-- INVARIANT a copy never goes back to an older version: a slow replica cannot undo a pause.
-- Atomic, since a claim must see all pauses of a version or all of another.
local stands = tonumber(redis.call('HGET', KEYS[1], 'version') or '0')
if stands >= tonumber(ARGV[1]) then return {'applied', stands} end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'version', ARGV[1])
for i = 1, tonumber(ARGV[2]) do redis.call('HSET', KEYS[1], ARGV[2 + i], '1') end
return {'applied', tonumber(ARGV[1])}
