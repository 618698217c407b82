-- Tell the session, once, that a decision was refused.
-- KEYS     1 refusal mark  2 outbox messages  3 outbox due
-- ARGV     1 now (ms)  2 attempt token  3 time the mark lives (ms)  4 outbox count, then pairs
-- RETURNS  {"told"} by this attempt; {"repeated"} told before
-- INVARIANT a hundred late clicks are one line in the timeline.
-- Atomic: a mark without its message would hide the refusal for ever.
--@include now
--@include outbox
local now = store_now(ARGV[1])
if not redis.call('SET', KEYS[1], ARGV[2], 'NX', 'PX', ARGV[3]) then
  if redis.call('GET', KEYS[1]) == ARGV[2] then return {'told'} end
  return {'repeated'}
end
outbox_add(KEYS[2], KEYS[3], now, 4)
return {'told'}
