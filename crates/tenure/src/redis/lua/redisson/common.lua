-- A lock as Redisson's RLock has it: a hash with one field, the owner, and a count of entries.
local LOCK, HOLD, TOKEN, CHANNEL = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

-- Wakes all waiters, with Redisson's message.
local function wake()
  redis.call('PUBLISH', CHANNEL, '0')
  if PUBLISH == 'SPUBLISH' then
    -- Redisson subscribes to one of the two, as its settings say.
    redis.call('SPUBLISH', CHANNEL, '0')
  end
end

local function is_ours(owner)
  return redis.pcall('HEXISTS', LOCK, owner) == 1
end
