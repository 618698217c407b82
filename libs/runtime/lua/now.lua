-- store_now(given): the larger of Redis TIME and the time given, in ms. Errs towards expiry, and lets tests move on.
local function store_now(given)
  local t = redis.call('TIME')
  local real = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
  local asked = tonumber(given) or 0
  if asked > real then return asked end
  return real
end
