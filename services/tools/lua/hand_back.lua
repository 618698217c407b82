-- Give a pending operation back that may have been sent before and must not be sent now.
-- KEYS     1 operation  2 lease
-- ARGV     1 now (ms)  2 owner token  3 member of lease  4 ms until it may be taken over
-- RETURNS  {"handed_back"}     now, or before; whoever looks for ended leases finds it then
--          {"fenced", state}   somebody else holds it or has finished it; nothing changed
-- INVARIANT nobody but the next one who takes it over can record or send it (G4).
-- Atomic, since a successor's lease must not be ended.
--@include now
--@include evidence
local now = store_now(ARGV[1])
local old = redis.call('HMGET', KEYS[1], 'state', 'owner', 'former')
if old[1] == 'pending' and old[2] == '' and old[3] == ARGV[2] then return {'handed_back'} end
if old[1] ~= 'pending' or old[2] ~= ARGV[2] then return {'fenced', old[1] or 'absent'} end
local from = now + tonumber(ARGV[4])
redis.call('HSET', KEYS[1], 'owner', '', 'former', ARGV[2], 'lease_until', from)
redis.call('ZADD', KEYS[2], from, ARGV[3])
evidence_add(now, 'handed_back')
return {'handed_back'}
