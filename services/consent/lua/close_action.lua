-- Close a question that nobody decided, or let an accepted grant lapse that was not used up.
-- KEYS     1 action  2 open  3 expiry  4 grants  5 outbox messages  6 outbox due
-- ARGV     1 action id  2 member of the expiry and grant indexes  3 now (ms)
--          4 expired, superseded, cancelled or lapsed  5 attempt token  6 reason  7 time to keep (ms)
--          8 outbox count, then pairs
-- RETURNS  {"closed"} by this attempt; {"repeated"} closed so before; {"early"} its time has not come
--          {"withdrawn"} cancelled or superseded before it was asked: it never will be; {"spent"} nothing is left
--          of the grant
--          {"stands", state} decided or closed otherwise; {"absent"}
-- INVARIANT what is decided stays decided: only a pending question is closed, and only an unused grant lapses.
-- Atomic: an acceptance between the look and the closing would be undone, or the session told both.
--@include now
--@include outbox
--@include evidence
local now = store_now(ARGV[3])
local target, token = ARGV[4], ARGV[5]
local row = redis.call('HMGET', KEYS[1], 'state', 'expires_at', 'lapses_at', 'closed_as', 'closed_token', 'count')
local state, closed_as, closed_token = row[1], row[4], row[5]

local function close(fields)
  redis.call('HSET', KEYS[1], 'closed_as', target, 'closed_token', token, 'closed_at', now, 'reason', ARGV[6])
  if fields then redis.call('HSET', KEYS[1], 'state', fields) end
  outbox_add(KEYS[5], KEYS[6], now, 8)
  evidence_add(now, 'closed')
end

local function all_spent(count)
  for i = 0, count - 1 do
    if redis.call('HEXISTS', KEYS[1], 's' .. i) == 0 then return false end
  end
  return true
end

if closed_as then
  if closed_as ~= target then return {'stands', closed_as} end
  if closed_token ~= token then return {'repeated'} end
  if (state == 'cancelled' or state == 'superseded') and not row[6] then return {'withdrawn'} end
  return {'closed'}
end
if target == 'lapsed' then
  if state ~= 'accepted' then
    redis.call('ZREM', KEYS[4], ARGV[2])
    if state then return {'stands', state} end
    return {'absent'}
  end
  if all_spent(tonumber(row[6])) then
    redis.call('ZREM', KEYS[4], ARGV[2])
    return {'spent'}
  end
  if now <= tonumber(row[3]) then return {'early'} end
  redis.call('ZREM', KEYS[4], ARGV[2])
  close(nil)
  return {'closed'}
end

if not state then
  redis.call('ZREM', KEYS[3], ARGV[2])
  if target == 'expired' then return {'absent'} end
  -- Two replicas may take the asking and its closing in either order: leave a mark, so that it is never asked.
  close(target)
  redis.call('PEXPIRE', KEYS[1], ARGV[7])
  return {'withdrawn'}
end
if state ~= 'pending' then
  redis.call('ZREM', KEYS[3], ARGV[2])
  return {'stands', state}
end
if target == 'expired' and now <= tonumber(row[2]) then return {'early'} end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[2])
close(target)
return {'closed'}
