-- Reserve one use of a standing approval for an operation, before its key is claimed (design §3.4).
-- KEYS     1 uses whose claim is not known yet  2 … all standing approvals of the user, in the order of their index
-- ARGV     1 now (ms)  2 name of the use: session:key  3 call  4 what is kept of the use  5 not_after (ms)
--          6 when the use is looked at, should the door say no more of it (ms)  7 user
--          8 fingerprint of tool and arguments  9 … for each approval: id, and "1" where its limits cover the step
-- RETURNS  {"reserved", id, ends_at}   for this operation, now or before: it may be claimed until then
--          {"ended", id}               reserved before, and the approval was revoked or is over since: claim nothing new
--          {"none"}                    no approval covers it that is live and has a use left, or the operation's use was
--                                    reserved for other arguments or another source
-- INVARIANT an operation has at most one use, of one approval, however often and by whomever it is called; an approval
--          never has more uses than it was granted (G3). A use knows each call that may still claim by it.
-- Atomic: of twenty callers for the last use one gets it.
--@include now
local now = store_now(ARGV[1])
local name, call = ARGV[2], ARGV[3]

local function row(i)
  local raw = redis.call('HMGET', KEYS[i], 'request', 'ends_at', 'revoked_at', 'taken', 'c:' .. name, 'n:' .. name,
    'f:' .. name)
  return {id = ARGV[5 + 2 * i], covers = ARGV[6 + 2 * i], known = raw[1], ends_at = raw[2], revoked = raw[3],
    taken = tonumber(raw[4] or '0'), calls = raw[5], last = tonumber(raw[6] or '0'), fingerprint = raw[7]}
end

local function over(grant)
  return grant.revoked or now > tonumber(grant.ends_at)
end

local function watch(i, grant, calls)
  local last = math.max(grant.last, math.min(tonumber(ARGV[5]), tonumber(grant.ends_at)))
  redis.call('HSET', KEYS[i], 'c:' .. name, calls, 'n:' .. name, last)
  redis.call('ZADD', KEYS[1], ARGV[6], ARGV[7] .. ':' .. grant.id .. ':' .. name)
end

for i = 2, #KEYS do
  local grant = row(i)
  if grant.known and grant.calls then
    -- Another call under the key may never run what the limits were not asked about.
    if grant.fingerprint ~= ARGV[8] or grant.covers ~= '1' then return {'none'} end
    -- Also of a use that is spent: what failed after all is not done again under an approval that was revoked.
    if over(grant) then return {'ended', grant.id} end
    if grant.calls == 'spent' then return {'reserved', grant.id, grant.ends_at} end
    if not string.find(grant.calls, ' ' .. call .. ' ', 1, true) then
      watch(i, grant, grant.calls .. call .. ' ')
    end
    return {'reserved', grant.id, grant.ends_at}
  end
end

for i = 2, #KEYS do
  local grant = row(i)
  if grant.known and grant.covers == '1' and not over(grant) then
    local request = cjson.decode(grant.known)
    if now >= tonumber(request.begins_at or 0) and grant.taken < request.uses then
      redis.call('HINCRBY', KEYS[i], 'taken', 1)
      redis.call('HSET', KEYS[i], 'u:' .. name, ARGV[4], 'f:' .. name, ARGV[8])
      watch(i, grant, ' ' .. call .. ' ')
      return {'reserved', grant.id, grant.ends_at}
    end
  end
end
return {'none'}
