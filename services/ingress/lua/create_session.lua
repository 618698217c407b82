-- Write a session's owner, once.
-- KEYS     1 owner  2 sessions  3 waiting  4 waitingindex  5 trial
-- ARGV     1 session  2 owner  3 now (ms)  4 time that a session lives (ms)  5 the mark of a trial as JSON, or ""
-- RETURNS  {"created", n}    n events waited for it and are due for release
--          {"same", n}       it exists with this owner
--          {"taken", owner}  it exists with another owner; nothing changed
--          {"real"}          it exists and is no trial: it never becomes one; nothing changed
-- INVARIANT a session has one owner for its whole life: consent takes the approver from here (G6). What
--          somebody may rely on as real is never made a trial.
-- Atomic: of two that claim one session, one owns it.
--@include held_queue
--@include evidence
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[2] then
  return {'taken', owner}
end
if owner and ARGV[5] ~= '' and redis.call('EXISTS', KEYS[5]) == 0 then return {'real'} end
if ARGV[5] ~= '' then redis.call('SET', KEYS[5], ARGV[5], 'PX', ARGV[4]) end
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
