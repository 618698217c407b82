-- Seal the next entries of a session's evidence: their links, the signed head, and the messages that tell of them.
-- KEYS     1 evidence  2 links  3 chain  4 heads  5 evidencedue  6 outbox messages  7 outbox due
-- ARGV     1 now (ms)  2 session  3 how many were sealed before  4 how many are then  5 the last link  6 head
--          7 entries kept  8 heads kept  9 time to live (ms)  10 the new links, a space between  11 first previous link
--          12 link before the first kept entry, where entries are trimmed  13 how many are trimmed
--          14 outbox count, then pairs (id, packed)
-- RETURNS  {"sealed", left} with how many wait still
--          {"moved", n}   somebody else sealed up to n; nothing changed
--          {"broken", n}  the stored chain does not fit together; nothing changed
-- STATE    n how many are sealed  hash the last link  base how many are no longer kept  previous the link before them
-- INVARIANT an entry is sealed once, in its place, and what is no longer kept was sealed and given to the archive.
--          Nothing is signed on top of a chain that was visibly tampered with.
-- Atomic: two notaries would each link the same entries, and links without their head could be made anew unseen.
--@include now
--@include outbox
local now = store_now(ARGV[1])
local chain = redis.call('HMGET', KEYS[3], 'n', 'base', 'hash')
local sealed = tonumber(chain[1] or '0')
if sealed ~= tonumber(ARGV[3]) then return {'moved', sealed} end
if redis.call('LLEN', KEYS[2]) ~= sealed - tonumber(chain[2] or '0')
  or sealed > 0 and redis.call('LRANGE', KEYS[2], -1, -1)[1] ~= chain[3] then
  return {'broken', sealed}
end
for link in string.gmatch(ARGV[10], '%S+') do
  redis.call('RPUSH', KEYS[2], link)
end
redis.call('RPUSH', KEYS[4], ARGV[6])
redis.call('LTRIM', KEYS[4], -tonumber(ARGV[8]), -1)
redis.call('HSET', KEYS[3], 'n', ARGV[4], 'hash', ARGV[5])
if not chain[1] then redis.call('HSET', KEYS[3], 'base', 0, 'previous', ARGV[11]) end
local base, cut = tonumber(chain[2] or '0'), tonumber(ARGV[13])
if cut > 0 and tonumber(ARGV[4]) - base - cut >= tonumber(ARGV[7]) then
  redis.call('LTRIM', KEYS[1], cut, -1)
  redis.call('LTRIM', KEYS[2], cut, -1)
  base = base + cut
  redis.call('HSET', KEYS[3], 'base', base, 'previous', ARGV[12])
end
for i = 1, 4 do
  redis.call('PEXPIRE', KEYS[i], ARGV[9])
end
local left = base + redis.call('LLEN', KEYS[1]) - tonumber(ARGV[4])
if left > 0 then
  redis.call('ZADD', KEYS[5], now, ARGV[2])
else
  redis.call('ZREM', KEYS[5], ARGV[2])
end
outbox_add(KEYS[6], KEYS[7], now, 14)
return {'sealed', left}
