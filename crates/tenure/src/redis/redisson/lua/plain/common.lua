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

local function now_ms()
  local clock = redis.call('TIME')
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

-- Ends the hold of our owner: the lock is free, or stays reserved for a while, if the hold says so and `ended` is not false;
-- it is '1' if the hold ended before. A reserved lock has the field '-', which belongs to no client, until the key expires.
local function finish(ended)
  local since, min_hold, delay
  if ended then
    since, min_hold, delay = string.match(redis.call('GET', HOLD) or '', '^%+?%d+ %S+ (%d+) (%d+) (%d+)')
  end
  local rest = since and math.floor(since / 1000) + min_hold - now_ms() or 0
  if since and ended == '1' then
    rest = math.max(rest, tonumber(delay))
  end
  redis.call('DEL', LOCK)
  if rest > 0 then
    redis.call('HSET', LOCK, '-', 1)
    redis.call('PEXPIRE', LOCK, string.format('%d', rest))
  end
  -- A waiter that asks now learns until when the lock is reserved.
  wake()
end
