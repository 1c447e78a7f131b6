-- A lock as Redisson's fair lock has it: the hash of an RLock, with the waiters in a list in the order of their arrival, and
-- in a sorted set until when each of them is good, in ms since 1970. Redisson's clients compare these times with their own
-- clocks; we use the server's.
-- HOLDERS is ours: what others may know of our waiters, OWNER to SELF.
local HOLDERS = KEYS[3]
local NAME = string.sub(CHANNEL, #'redisson_lock__channel:' + 1)
local QUEUE, DEADLINES = 'redisson_lock_queue:' .. NAME, 'redisson_lock_timeout:' .. NAME
local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
local ms = math.floor(us / 1000)

-- Wakes the first waiter, which has a channel of its own.
local function wake()
  local first = redis.call('LINDEX', QUEUE, 0)
  if first then
    publish(CHANNEL .. ':' .. first, '0')
  end
end

local function now_ms()
  return ms
end

local function deadline_of(owner)
  return tonumber(owner and redis.call('ZSCORE', DEADLINES, owner) or nil)
end

-- Removes the first waiters while their time is over. As in Redisson, a waiter without a time stays.
local function purge()
  while true do
    local first = redis.call('LINDEX', QUEUE, 0)
    local deadline = first and deadline_of(first)
    if not deadline or deadline > ms then
      return
    end
    redis.call('LREM', QUEUE, 1, first)
    redis.call('ZREM', DEADLINES, first)
    redis.call('HDEL', HOLDERS, first)
  end
end

-- Moves the deadlines of the waiters behind place number `at` of `queue`.
local function shift(queue, at, by)
  for i = at + 1, #queue do
    redis.call('ZADD', DEADLINES, 'XX', 'INCR', string.format('%.0f', by), queue[i])
  end
end

-- The waiters, and the place of the owner among them, if it has one.
local function find(owner)
  local queue = redis.call('LRANGE', QUEUE, 0, -1)
  for at, waiter in ipairs(queue) do
    if waiter == owner then
      return queue, at
    end
  end
  return queue, nil
end

-- Takes our waiter out of the queue. Each deadline counts from the one before it, so those behind the waiter come closer
-- by what it had added.
local function leave(owner)
  local queue, at = find(owner)
  if at then
    local added = (deadline_of(owner) or 0) - math.max(ms, deadline_of(queue[at - 1]) or 0)
    redis.call('LREM', QUEUE, 1, owner)
    redis.call('ZREM', DEADLINES, owner)
    if added > 0 then
      shift(queue, at, -added)
    end
  end
  redis.call('HDEL', HOLDERS, owner)
  return at
end
