-- Write a session's owner, once.
-- KEYS     1 owner  2 sessions  3 waiting  4 waitingindex
-- ARGV     1 session  2 owner  3 now (ms)  4 time that a session lives (ms)
-- RETURNS  {"created", n}    n events waited for it and are due for release
--          {"same", n}       it exists with this owner
--          {"taken", owner}  it exists with another owner; nothing changed
-- INVARIANT a session has one owner for its whole life: consent takes the approver from here (G6).
-- Atomic: of two that claim one session, one owns it.
--@include held_queue
--@include evidence
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[2] then
  return {'taken', owner}
end
if not owner then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[4])
  redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
  evidence_add(tonumber(ARGV[3]), 'created')
end
local waiting = queue_size(KEYS[3])
if waiting > 0 then
  redis.call('ZADD', KEYS[4], 'XX', 0, ARGV[1])
end
return {owner and 'same' or 'created', waiting}
