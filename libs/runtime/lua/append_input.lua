-- append_input(keys, input) gives one sealed input its number in a session's inbox.
--
-- PARAMETERS
--   keys.owner    the session's owner; absent means that there is no such session
--   keys.number   the last number given
--   keys.inbox    hash: number -> input as JSON
--   keys.outcome  hash, day and slot of the input: input id -> "session number outcome", outcome "-" until known
--   keys.outbox   messages of the appending service's outbox in this partition
--   input.id, input.session, input.packed   the input, sealed for input.number
--   input.number  the number that the caller expects to be next; the seal covers it
--   input.ttl     milliseconds that numbers and inbox live after the last append
--   input.keep    milliseconds that the outcome is kept
--   input.bound   most messages that the outbox may hold
-- RETURNS tag, number
--   appended n    done; the caller adds its doorbell with outbox_add in the same script
--   already  n    this id was appended before as number n; nothing changed
--   absent   0    no such session; nothing changed
--   number   n    the next number is n: seal again for n and ask again; nothing changed
--   full     0    the outbox is above its bound; nothing changed
-- INVARIANT
--   Numbers of a session are 1, 2, 3, ... without a gap, each given to one input, and an input has at most one.
--   All or nothing: the caller may change other keys before or after, by the tag.
-- Atomic, since number, input, mark and doorbell must exist together or not at all (G1, G5). Writes neither owner nor
-- any index, so that every service that appends may use it with the rights that it has.
local function append_input(keys, input)
  local known = redis.call('HGET', keys.outcome, input.id)
  if known then
    return 'already', tonumber(string.match(known, '^%S+ (%d+)'))
  end
  if redis.call('EXISTS', keys.owner) == 0 then
    return 'absent', 0
  end
  local next_number = tonumber(redis.call('GET', keys.number) or '0') + 1
  if input.number ~= next_number then
    return 'number', next_number
  end
  if redis.call('HLEN', keys.outbox) >= input.bound then
    return 'full', 0
  end
  redis.call('SET', keys.number, next_number, 'PX', input.ttl)
  redis.call('HSET', keys.inbox, next_number, input.packed)
  redis.call('PEXPIRE', keys.inbox, input.ttl)
  redis.call('HSET', keys.outcome, input.id, input.session .. ' ' .. next_number .. ' -')
  -- Sources keep outcomes for different spans and share the bucket: the longest counts.
  if redis.call('PTTL', keys.outcome) < input.keep then
    redis.call('PEXPIRE', keys.outcome, input.keep)
  end
  return 'appended', next_number
end
