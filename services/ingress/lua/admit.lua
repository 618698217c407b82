-- Claim an event's identity and store the event, in one write.
-- KEYS     1 event  2 admitted  3 dedupe, tomorrow  4 dedupe, today  5… dedupe, older days of the window
-- ARGV     1 now (ms)  2 identity  3 mark (what a copy has in common: digest of the body)  4 token of this attempt
--          5 the event as JSON  6 window (ms)  7 time that a dedupe bucket lives (ms)
-- RETURNS  {"accepted"}            new, or this very attempt again, whose reply was lost
--          {"pending", event}      a copy of one that is stored and not yet in its session: finish that first
--          {"duplicate"}           a copy of one that was delivered or is held
--          {"other", mark, event}  the identity is known with another mark; event as above, or ""
-- INVARIANT a dedupe entry exists exactly when its event was stored (C070): never a mark without the event.
-- Atomic, since of many copies at once to many replicas one may pass (G2, C072). Tomorrow's bucket is looked at too:
-- replicas with clocks on either side of midnight would each accept. The token tells a lost reply from a copy (C073);
-- it lives as long as the stored event.
local first
for i = 3, #KEYS do
  first = redis.call('HGET', KEYS[i], ARGV[2])
  if first then break end
end
if not first then
  redis.call('HSET', KEYS[4], ARGV[2], ARGV[3])
  if redis.call('PTTL', KEYS[4]) < tonumber(ARGV[7]) then
    redis.call('PEXPIRE', KEYS[4], ARGV[7])
  end
  redis.call('SET', KEYS[1], ARGV[4] .. ' ' .. ARGV[5], 'PX', ARGV[6])
  redis.call('ZADD', KEYS[2], ARGV[1], ARGV[2])
  return {'accepted'}
end
local token, event = string.match(redis.call('GET', KEYS[1]) or '', '^(%S+) (.*)$')
if first ~= ARGV[3] then
  return {'other', first, event or ''}
end
if token == ARGV[4] then
  return {'accepted'}
end
if token then
  return {'pending', event}
end
return {'duplicate'}
