-- Redeem a decision: judge it against the action, and take it in the same step.
-- KEYS     1 action  2 open  3 expiry  4 grants  5 number  6 inbox  7 outcome  8 outbox messages  9 outbox due
-- ARGV     1 action id  2 member of the expiry and grant indexes  3 now (ms)  4 who decides  5 question digest
--          6 accept, decline or cancel  7 attempt token: what carried the decision, a colon, a nonce  8 number of the input that was typed, 0 over HTTP
--          9 receipt  10 lapses at (ms)  11 time to keep after that (ms)  12 input id  13 session
--          14 number that the input is sealed for  15 input  16 time the numbers live (ms)
--          17 time the outcome is kept (ms)  18 most messages in the outbox  19 outbox count, then pairs
-- RETURNS  {"accepted" | "declined" | "cancelled", receipt, asked at} by this attempt; {"repeated", receipt}
--          {"replayed", receipt} taken before from the same carrier: the same message came twice
--          {"no_such_action"} {"wrong_person"} {"wrong_question"} {"expired"} {"superseded"} {"withdrawn"}
--          {"decided_otherwise"}: nothing changed
--          {"number", n}: the next number of the session is n, seal again; {"full"}
-- INVARIANT a question is decided at most once, by its approver, in time, for the digest of what was shown (G6);
--           the decision and the sealed input that tells the session of it exist together or not at all.
-- Atomic: judged on one state and taken on another, two people or two clicks could each be told that they decided.
--@include now
--@include outbox
--@include append_input
--@include evidence
local STATE_OF = {accept = 'accepted', decline = 'declined', cancel = 'cancelled'}
local now = store_now(ARGV[3])
local by, digest, verdict, token = ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local row = redis.call('HMGET', KEYS[1], 'state', 'approver', 'question_digest', 'expires_at', 'asked_number',
  'decided_by', 'decision', 'decided_token', 'receipt', 'asked_at')
local state, approver, expires_at, asked_number = row[1], row[2], tonumber(row[4]), tonumber(row[5])
if not state or not approver then return {'no_such_action'} end
if approver ~= by then return {'wrong_person'} end
-- A text that was numbered before the question was asked cannot have meant it, whenever it is shown to us.
local typed = tonumber(ARGV[8])
if typed > 0 and typed <= asked_number then return {'no_such_action'} end
if row[3] ~= digest then return {'wrong_question'} end

if row[7] then
  if row[6] ~= by or row[7] ~= verdict then return {'decided_otherwise'} end
  if row[8] == token then return {STATE_OF[verdict], row[9], row[10]} end
  if string.match(row[8], '^[^:]*') == string.match(token, '^[^:]*') then return {'replayed', row[9]} end
  return {'repeated', row[9]}
end
if state == 'superseded' then return {'superseded'} end
if state == 'cancelled' then return {'withdrawn'} end
if state ~= 'pending' or now > expires_at then return {'expired'} end

-- A script needs the right to write each of its keys, and consent may only read owners. That the action is there
-- proves the same: it was issued to an owner, who is written once.
local tag, number = append_input(
  {owner = KEYS[1], number = KEYS[5], inbox = KEYS[6], outcome = KEYS[7], outbox = KEYS[8]},
  {id = ARGV[12], session = ARGV[13], number = tonumber(ARGV[14]), packed = ARGV[15], ttl = ARGV[16],
    keep = tonumber(ARGV[17]), bound = tonumber(ARGV[18])})
if tag == 'number' then return {'number', number} end
if tag == 'full' then return {tag} end

redis.call('HSET', KEYS[1], 'state', STATE_OF[verdict], 'decision', verdict, 'decided_by', by, 'decided_at', ARGV[3],
  'decided_token', token, 'receipt', ARGV[9], 'input', ARGV[12])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[2])
if verdict == 'accept' then
  redis.call('HSET', KEYS[1], 'lapses_at', ARGV[10])
  redis.call('ZADD', KEYS[4], ARGV[10], ARGV[2])
end
redis.call('PEXPIREAT', KEYS[1], tonumber(ARGV[10]) + tonumber(ARGV[11]))
outbox_add(KEYS[8], KEYS[9], now, 19)
evidence_add(now, 'taken')
return {STATE_OF[verdict], ARGV[9], row[10]}
