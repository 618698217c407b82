-- Begin or end a pause, in the one list of the deployment.
-- KEYS     1 pauselist
-- ARGV     1 field, such as `tool:book`  2 record as JSON, or "" to end it  3 most pauses at once
-- RETURNS  {"set", version, record}      now
--          {"same", version, record}     it was so already: the record that stands, "" for none; nothing changed
--          {"full", version, ""}         there are as many as may be; nothing changed
-- INVARIANT each change has a version of its own, which only rises: whoever has seen it has seen all before it.
-- Atomic, since of two operators at once both must end up in the list, each with a version of its own.
local old = redis.call('HGET', KEYS[1], ARGV[1])
local version = tonumber(redis.call('HGET', KEYS[1], 'version') or '0')
if (old and ARGV[2] ~= '') or (not old and ARGV[2] == '') then return {'same', version, old or ''} end
if ARGV[2] ~= '' and redis.call('HLEN', KEYS[1]) > tonumber(ARGV[3]) then return {'full', version, ''} end
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
version = redis.call('HINCRBY', KEYS[1], 'version', 1)
return {'set', version, ARGV[2] ~= '' and ARGV[2] or old}
