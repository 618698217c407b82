-- Give one call of a trial its number under each selector of faults that fits it.
-- KEYS     1 trial  2 faultcount
-- ARGV     1 the trial as it was read  2 version  3 the call: operation key and attempt  4 time to live (ms)
--          5 count n of selectors, then n selectors
-- RETURNS  {"counted", n numbers}    also when asked again for this call
--          {"changed"}               the trial is another one by now; nothing is counted
-- INVARIANT each call has one number for ever, and no two calls of a selector have the same, on whichever replicas.
-- Atomic, since two replicas would both be the n-th, and neither or both meet the fault.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'changed'} end
local reply = {'counted'}
for i = 1, tonumber(ARGV[5]) do
  local counter = ARGV[2] .. ':' .. ARGV[5 + i]
  local call = counter .. ':' .. ARGV[3]
  local number = redis.call('HGET', KEYS[2], call)
  if not number then
    number = redis.call('HINCRBY', KEYS[2], counter, 1)
    redis.call('HSET', KEYS[2], call, number)
  end
  reply[#reply + 1] = tonumber(number)
end
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return reply
