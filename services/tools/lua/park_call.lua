-- Keep a call that came while its sends are paused, with the word that it waits.
-- KEYS     1 pauses  2 parked  3 parkedorder  4 parkedends  5 outbox messages  6 outbox due
-- ARGV     1 now (ms)  2 tool  3 session  4 origin  5 call  6 the call as it lies in an outbox
--          7 when it ends whether paused or not (ms)  8 most that may be kept
--          9 outbox count, then pairs (id, packed)
-- RETURNS  {"parked"}     now, or before
--          {"go"}         it is paused no more; nothing is stored
--          {"full"}       as many as may be are kept; nothing is stored
-- INVARIANT what is kept is either paused or found by the next look at what is kept: nothing is lost (G1, G9).
-- Atomic, since a pause may end between a look and the keeping, and nobody would wake the call.
--@include now
--@include outbox
--@include paused
--@include parked
local now = store_now(ARGV[1])
if redis.call('HEXISTS', KEYS[2], ARGV[5]) == 1 then return {'parked'} end
if not paused_by(KEYS[1], ARGV[2], ARGV[3], ARGV[4]) then return {'go'} end
if redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[8]) then return {'full'} end
park(KEYS[2], KEYS[3], KEYS[4], ARGV[5], ARGV[6], ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. ARGV[4], ARGV[7], now)
outbox_add(KEYS[5], KEYS[6], now, 9)
return {'parked'}
