-- paused_by(pauses, tool, session, origin): the pause that stops a send, such as `tool:book`, or nil. `origin` is kind,
-- source and principal, or "" for what has none.
local function paused_by(pauses, tool, session, origin)
  local names = {'all:', 'tool:' .. tool, 'session:' .. session, 'source:' .. (string.match(origin, '^%S+ (%S+)') or '')}
  for i, record in ipairs(redis.call('HMGET', pauses, unpack(names))) do
    if record then return names[i] end
  end
  return nil
end
