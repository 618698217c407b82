-- evidence_add(now, case, note) writes the entries of the caller's evidence that are meant for this case.
--
-- Its keys and arguments are the caller's last: the last two KEYS are the session's `evidence` and the partition's
-- `evidencedue`, the last two ARGV the session and lines of "case digest json". A caller that brings none writes none.
-- PARAMETERS  now: the store's time (ms), which becomes the entry's   case: which lines   note: what only the script
--             knows, such as an attempt's number; without a space
-- INVARIANT   an entry is written exactly when the change it tells of is, in the same script, and the order of entries
--             is the order of the changes. Links and signatures follow: they need SHA-256, which scripts do not have.
local EVIDENCE_TTL_MS = 34560000000 -- as long as a session: 400 days

local function evidence_add(now, case, note)
  local due = KEYS[#KEYS]
  if #KEYS < 2 or string.sub(due, -12) ~= ':evidencedue' then return end
  -- Plain searches: patterns over texts of this size cost more than all the rest.
  local lines, at, length = ARGV[#ARGV], 1, 0
  local head = string.format('%d', now) .. ' ' .. (note or '-') .. ' '
  while at <= #lines do
    local stop = string.find(lines, '\n', at, true) or #lines + 1
    local space = string.find(lines, ' ', at, true) or stop
    if string.sub(lines, at, space - 1) == case then
      length = redis.call('RPUSH', KEYS[#KEYS - 1], head .. string.sub(lines, space + 1, stop - 1))
      if length == 1 then redis.call('PEXPIRE', KEYS[#KEYS - 1], EVIDENCE_TTL_MS) end -- sealing renews it
    end
    at = stop + 1
  end
  if length > 0 then redis.call('ZADD', due, 'NX', now, ARGV[#ARGV - 1]) end
end
