-- Claim an operation's key before anything is sent, or say what is known of it (design §3.4).
-- KEYS     1 operation  2 session's index  3 lease  4 trim
--          5-7 bindings of the turn: tomorrow's, today's, yesterday's bucket
--          then n binding buckets, one a seal; then, for an action's step: the action, and the operations of the
--          steps before it in their order; then pauses
-- ARGV     1 now (ms)  2 call  3 owner token  4 lease (ms)  5 not_after (ms)  6 fingerprint  7 operation  8 turn
--          9 root turn  10 tool  11 arguments  12 context  13 session  14 origin  15 step cap
--          16 time to live of bindings (ms)  17 longest index  18 member of lease and trim  19 operation key
--          20 time to live of the index (ms)  21 step of the action or ""  22 number of the action's steps
--          23 count n of seals, then n input ids
-- RETURNS  {"claimed", attempt, keyed_from, now, lease_until, "1" where its key may have been sent by an earlier attempt}
--                                     run it; also when asked again by the same call and owner
--          {"pending", owner, lease_until, now, call}
--          {"known", state, result, reason, call, operation, attempt, tool, "1" for a failure whose key is spent}
--          {"conflict"} {"expired"}          nothing is stored
--          {"refused", reason}               nothing is stored
--          {"paused", pause}                 nothing is stored: its sends are paused
-- INVARIANT a key is claimed at most once per attempt, by one owner, and a later attempt only follows a failure that
--          was proved before sending, or one that the destination told of while it honours the key of before (G4). A
--          turn has one origin, an input one root turn, each written once; an
--          input's steps stay within the cap; an action's step is spent by its own key only, after those before it
--          are committed (G3, G6).
-- Atomic, since a claim without its bindings or its spent step could be repeated under another key.
--@include now
--@include paused
--@include evidence
local now = store_now(ARGV[1])
local call, owner, not_after = ARGV[2], ARGV[3], tonumber(ARGV[5])
local seals = tonumber(ARGV[23])
local action_step = ARGV[21]

local old = redis.call('HMGET', KEYS[1], 'state', 'fingerprint', 'call', 'owner', 'lease_until', 'attempt',
                       'result', 'reason', 'id', 'tool', 'resolved_by', 'released_until', 'keyed_from', 'claimed_at')
local state, attempt = old[1], tonumber(old[6] or '0')
if state and state ~= 'withdrawn' and old[2] ~= ARGV[6] then
  return {'conflict'}
end
if state == 'pending' then
  if old[3] == call and old[4] == owner then
    return {'claimed', attempt, old[13] or old[14], now, old[5], old[13] and old[13] ~= old[14] and '1' or ''}
  end
  return {'pending', old[4], old[5], now, old[3]}
end
-- A failure proved before sending has released the key: another call may try, the same call hears of it again. One that
-- was found out afterwards has released it for as long as the destination honours it: a holder that wakes after all sends
-- under the same key, also after a later attempt. An operator's word releases nothing.
local spent = state == 'failed' and (old[11] or old[12]) and now > tonumber(old[12] or '0')
if state and (state ~= 'failed' or spent or old[3] == call or now > not_after) then
  return {'known', state, old[7] or '', old[8] or '', old[3] or '', old[9] or '', attempt, old[10] or '',
          spent and '1' or ''}
end
if now > not_after then return {'expired'} end
local pauses = KEYS[8 + seals + (action_step ~= '' and 1 + tonumber(action_step) or 0)]
local pause = paused_by(pauses, ARGV[10], ARGV[13], ARGV[14])
if pause then return {'paused', pause} end

local turn_field = 't:' .. ARGV[13] .. ':' .. ARGV[9]
local bound = redis.call('HGET', KEYS[5], turn_field) or redis.call('HGET', KEYS[6], turn_field)
  or redis.call('HGET', KEYS[7], turn_field)
if bound and bound ~= ARGV[14] then return {'refused', 'the turn was begun by somebody else'} end
local taken = {}
for i = 1, seals do
  local known = redis.call('HGET', KEYS[7 + i], ARGV[23 + i])
  if known then
    local root, steps = string.match(known, '^(%S+) (%d+)$')
    if root ~= ARGV[9] then return {'refused', 'an input belongs to another turn'} end
    if tonumber(steps) >= tonumber(ARGV[15]) then return {'refused', 'too many steps for one input'} end
    taken[i] = tonumber(steps)
  end
end

local action = KEYS[8 + seals]
if action_step ~= '' then
  local granted = redis.call('HMGET', action, 'state', 'lapses_at', 's' .. action_step, 'closed_as')
  if granted[1] ~= 'accepted' then return {'refused', 'the action is ' .. (granted[1] or 'unknown')} end
  -- Once consent has said that it lapsed it has, whatever a slower clock says here.
  if granted[4] == 'lapsed' or not granted[2] or now > tonumber(granted[2]) then
    return {'refused', 'the approval has lapsed'}
  end
  if granted[3] and granted[3] ~= ARGV[19] then return {'refused', 'the step is spent'} end
  for i = 0, tonumber(action_step) - 1 do
    if redis.call('HGET', KEYS[9 + seals + i], 'state') ~= 'committed' then
      return {'refused', 'an earlier step is not committed'}
    end
  end
  redis.call('HSET', action, 's' .. action_step, ARGV[19])
  if tonumber(action_step) + 1 == tonumber(ARGV[22]) then redis.call('HSET', action, 'done', now) end
end

if not bound then
  redis.call('HSET', KEYS[6], turn_field, ARGV[14])
  redis.call('PEXPIRE', KEYS[6], ARGV[16])
end
for i = 1, seals do
  redis.call('HSET', KEYS[7 + i], ARGV[23 + i], ARGV[9] .. ' ' .. ((taken[i] or 0) + 1))
  redis.call('PEXPIRE', KEYS[7 + i], ARGV[16])
end

local lease_until = now + tonumber(ARGV[4])
local keyed_from = old[12] and old[13] or now
redis.call('HSET', KEYS[1], 'state', 'pending', 'call', call, 'owner', owner, 'lease_until', lease_until,
           'not_after', ARGV[5], 'fingerprint', ARGV[6], 'id', ARGV[7], 'turn', ARGV[8], 'root', ARGV[9],
           'tool', ARGV[10], 'args', ARGV[11], 'context', ARGV[12], 'attempt', attempt + 1, 'claimed_at', now,
           'keyed_from', keyed_from, 'origin', ARGV[14],
           'action', action_step ~= '' and string.match(action, '([^:]+)$') or '', 'step', action_step)
if state then -- a released key is claimed again
  redis.call('HDEL', KEYS[1], 'result', 'reason', 'finished_at', 'resolved_by', 'looked_up')
  redis.call('PERSIST', KEYS[1])
end
redis.call('ZADD', KEYS[3], lease_until, ARGV[18])
redis.call('ZADD', KEYS[4], ARGV[5], ARGV[18])
redis.call('ZADD', KEYS[2], now, ARGV[7] .. ':' .. ARGV[19])
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -1 - tonumber(ARGV[17]))
redis.call('PEXPIRE', KEYS[2], ARGV[20])
evidence_add(now, 'claimed', attempt + 1 .. '/' .. keyed_from)
return {'claimed', attempt + 1, keyed_from, now, lease_until, old[12] and '1' or ''}
