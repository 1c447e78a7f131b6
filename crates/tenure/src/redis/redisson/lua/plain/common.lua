-- A lock as Redisson's RLock has it.
local TOKEN = KEYS[3]

-- Wakes all waiters, with Redisson's message.
local function wake()
  publish(CHANNEL, '0')
end

local function now_ms()
  local clock = redis.call('TIME')
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end
