-- What the scripts of all of Redisson's locks share. What the third key is, the scripts of each lock say.
local LOCK, HOLD, CHANNEL = KEYS[1], KEYS[2], KEYS[4]

-- Redisson subscribes to one of the two, as its settings say.
local function publish(channel, message)
  redis.call('PUBLISH', channel, message)
  if PUBLISH == 'SPUBLISH' then
    redis.call('SPUBLISH', channel, message)
  end
end

