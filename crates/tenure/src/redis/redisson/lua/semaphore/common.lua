-- A lock as Redisson's RPermitExpirableSemaphore has it: a string, the number of free permits, and a sorted set with the ids
-- of those that are held, each with the end of its lease in ms since 1970. An id has 16 bytes; ours is the owner.
-- Redisson's clients compare these times with their own clocks; we use the server's.
-- HOLDERS is ours: OWNER to 'MODE TOKEN SINCE SELF', where MODE is x: the only permit of one, or p and the number of permits.
-- A permit that stays reserved after its hold has the id '-' and OWNER.
local HOLDERS = KEYS[3]
local DEADLINES = string.sub(CHANNEL, #'redisson_sc:' + 1) .. ':timeout'
local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
local ms = math.floor(us / 1000)

-- The id of our owner, which is written in hexadecimal.
local function id_of(owner)
  return (string.gsub(owner, '%x%x', function(byte) return string.char(tonumber(byte, 16)) end))
end

-- The owner of a permit in HOLDERS.
local function owner_of(id)
  if #id ~= 16 then
    return id
  end
  return (string.gsub(id, '.', function(byte) return string.format('%02x', string.byte(byte)) end))
end

-- Wakes waiters, with Redisson's message: how many permits are free.
local function wake(free)
  publish(CHANNEL, free)
end

-- Without the number of free permits none was set yet, or the key was deleted; the next request for a permit sets it.
local function give_back(count)
  if redis.call('EXISTS', LOCK) == 1 then
    wake(redis.call('INCRBY', LOCK, count))
  end
end

-- Ms until a lease ends; -1: never, which Redisson writes as the greatest number of milliseconds.
local function left_until(deadline)
  return tonumber(deadline) == 922337203685477 and -1 or deadline - ms
end

-- Gives the permits back whose lease is over.
local function purge()
  local over = redis.call('ZRANGEBYSCORE', DEADLINES, 0, ms, 'LIMIT', 0, 1000)
  if #over > 0 then
    redis.call('ZREM', DEADLINES, unpack(over))
    for _, id in ipairs(over) do
      redis.call('HDEL', HOLDERS, owner_of(id))
    end
    give_back(#over)
  end
end

-- For how long a permit stays reserved after its hold: `about` is what HOLDERS says of it, `ended` is '1' if the hold ended
-- before.
local function reserved_for(about, ended)
  local since, min_hold, delay = string.match(about or '', '^%S+ %d+ (%d+) (%d+) (%d+)')
  local rest = since and math.floor(since / 1000) + min_hold - ms or 0
  if since and ended == '1' then
    rest = math.max(rest, tonumber(delay))
  end
  return rest
end

-- Ends the hold of our owner. Its permit is free, or stays reserved for a while, if the hold says so and `ended` is not
-- false. 1: its lease was not over. 0: it was, or there is no such hold.
local function end_hold(owner, ended)
  local id, about = id_of(owner), ended and redis.call('HGET', HOLDERS, owner)
  local deadline = tonumber(redis.call('ZSCORE', DEADLINES, id) or nil)
  redis.call('HDEL', HOLDERS, owner)
  if not deadline then
    return 0
  end
  redis.call('ZREM', DEADLINES, id)
  local is_held = deadline > ms
  local rest = is_held and ended and reserved_for(about, ended) or 0
  if rest > 0 then
    redis.call('ZADD', DEADLINES, string.format('%.0f', ms + rest), '-' .. owner)
    redis.call('HSET', HOLDERS, '-' .. owner, about)
    if redis.call('PTTL', HOLDERS) < rest then
      redis.call('PEXPIRE', HOLDERS, string.format('%d', rest))
    end
    -- One waiter asks again, and learns until when the permit is reserved.
    wake(1)
  else
    give_back(1)
  end
  return is_held and 1 or 0
end
