-- Open a question, in the place of others where it names some, or record that it is not asked.
-- KEYS     1 action  2 actions  3 open  4 expiry  5 number  6 outbox messages  7 outbox due
--          8 … the actions whose place it takes
-- ARGV     1 action id  2 member of the expiry index (session:action)  3 now (ms)  4 attempt token
--          5 fingerprint of what is asked  6 asking source  7 most open questions of one source
--          8 expires at (ms)  9 time to keep after that (ms)  10 why it is not asked, empty when it may be
--          11 field count, then pairs (field, value); after them outbox count and pairs for the asked question,
--          outbox count and pairs for the refusal (sent instead when the cap is reached or 10 is given);
--          then how many places it takes, and for each: action id, member of the expiry index, why it is closed, why
--          nothing is asked where it was accepted, outbox count and pairs for the closing, the same for that refusal
-- RETURNS  {"asked", ids that were closed for it, a space after each} {"not_asked", reason} by this attempt
--          {"repeated"} issued before with the same content; {"other"} with other content; {"closed"} cancelled first
-- INVARIANT an action id has one content for ever, and a source never has more open questions than its cap.
--           What was accepted stays accepted, and then nothing is opened in its place: never are both to run.
-- Atomic: two replicas may issue at once; the cap, the record and its messages must be decided on one state. An
-- acceptance between closing one question and opening the next would be lost, or run beside its successor.
--@include now
--@include outbox
--@include evidence
local function pairs_end(first)
  return first + 1 + 2 * tonumber(ARGV[first])
end

local asked_group = pairs_end(11)
local refused_group = pairs_end(asked_group)
local places = pairs_end(refused_group)
local now = store_now(ARGV[3])

local known = redis.call('HMGET', KEYS[1], 'fingerprint', 'token', 'issued', 'reason', 'state', 'replaced')
if known[1] then
  if known[1] ~= ARGV[5] then return {'other'} end
  if known[2] ~= ARGV[4] then return {'repeated'} end
  if known[3] == 'asked' then return {'asked', known[6] or ''} end
  return {'not_asked', known[4]}
end
if known[5] then return {'closed'} end

-- What it takes the place of: open or not yet issued gives way, accepted stands, anything else is over.
local giving_way, stands = {}, nil
local at = places + 1
for i = 1, tonumber(ARGV[places]) do
  local closing = at + 4
  local place = {key = KEYS[7 + i], id = ARGV[at], member = ARGV[at + 1], why = ARGV[at + 2], why_not = ARGV[at + 3],
    closing = closing, refusal = pairs_end(closing)}
  local state = redis.call('HGET', place.key, 'state')
  if not state or state == 'pending' then
    table.insert(giving_way, place)
  elseif state == 'accepted' and not stands then
    stands = place
  end
  at = pairs_end(place.refusal)
end

local function gives_way(id)
  for _, place in ipairs(giving_way) do
    if place.id == id then return true end
  end
  return false
end

local function open_of_source(source)
  local count = 0
  local rows = redis.call('HGETALL', KEYS[3])
  for i = 1, #rows, 2 do
    local deadline, asking = string.match(rows[i + 1], '^(%d+) (.*)$')
    -- What is past its deadline is no longer open, whether or not a sweeper has come by.
    if asking == source and tonumber(deadline) >= now and not gives_way(rows[i]) then count = count + 1 end
  end
  return count
end

local reason = ARGV[10]
if stands then
  reason = stands.why_not
  refused_group = stands.refusal
end
if reason == '' and open_of_source(ARGV[6]) >= tonumber(ARGV[7]) then
  reason = 'too many open questions'
end

redis.call('HSET', KEYS[1], 'fingerprint', ARGV[5], 'token', ARGV[4])
if reason ~= '' then
  redis.call('HSET', KEYS[1], 'state', 'not_asked', 'issued', 'not_asked', 'reason', reason)
  redis.call('PEXPIRE', KEYS[1], ARGV[9])
  outbox_add(KEYS[6], KEYS[7], now, refused_group)
  evidence_add(now, 'not_asked')
  return {'not_asked', reason}
end

local replaced = ''
for _, place in ipairs(giving_way) do
  redis.call('HSET', place.key, 'state', 'superseded', 'closed_as', 'superseded', 'closed_token', ARGV[4],
    'closed_at', now, 'reason', place.why)
  -- Not issued yet: the mark is kept, so that it is never asked.
  if redis.call('PTTL', place.key) < 0 then redis.call('PEXPIRE', place.key, ARGV[9]) end
  redis.call('HDEL', KEYS[3], place.id)
  redis.call('ZREM', KEYS[4], place.member)
  outbox_add(KEYS[6], KEYS[7], now, place.closing)
  evidence_add(now, 'place:' .. place.id)
  replaced = replaced .. place.id .. ' '
end

for i = 0, tonumber(ARGV[11]) - 1 do
  redis.call('HSET', KEYS[1], ARGV[12 + 2 * i], ARGV[13 + 2 * i])
end
local asked_number = redis.call('GET', KEYS[5]) or '0'
redis.call('HSET', KEYS[1], 'state', 'pending', 'issued', 'asked', 'expires_at', ARGV[8], 'replaced', replaced,
  'asked_number', asked_number)
redis.call('PEXPIREAT', KEYS[1], tonumber(ARGV[8]) + tonumber(ARGV[9]))
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -201)
redis.call('PEXPIRE', KEYS[2], ARGV[9])
redis.call('HSET', KEYS[3], ARGV[1], ARGV[8] .. ' ' .. ARGV[6])
redis.call('PEXPIRE', KEYS[3], ARGV[9])
redis.call('ZADD', KEYS[4], ARGV[8], ARGV[2])
outbox_add(KEYS[6], KEYS[7], now, asked_group)
evidence_add(now, 'asked', asked_number .. '/' .. string.gsub(replaced, ' ', ','))
return {'asked', replaced}
