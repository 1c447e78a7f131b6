-- What the scripts about one lock share. Times are the server's.
local LOCK, HOLD, QUEUE = KEYS[1], KEYS[2], KEYS[3]
local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
local ms = math.floor(us / 1000)
-- A token outlives its hold by a day, in ms.
local KEEP = '86400000'

-- SELF is what others need to know of an owner: MIN_HOLD DELAY CHANNEL HOLDER.
-- QUEUE is a list that has two elements of each waiter, in order: OWNER, and DEADLINE SELF.

-- Grants the lock to `owner`, under a token that is greater than every earlier one, also when the server has
-- forgotten those. The caller knows that the lock is free, and what is in `hold`. The mark is '+' unless the queue is
-- empty, so that a release without waiters need not read the queue.
local function grant(owner, live, keep, self, hold, mark, propose)
  local last = tonumber(string.match(hold or '', '%d+') or 0)
  local token = string.format('%d', math.max(last + 1, propose or us))
  redis.call('SET', LOCK, owner, 'PX', live)
  redis.call('SET', HOLD, string.format('%s%s %s %d ', mark, token, owner, us) .. self, 'PX', keep)
  return token
end

-- Grants the free lock to the first waiter whose place is still good, for as long as that place would be good, under
-- `propose` at least. False: no waiter is left.
local function serve(hold, propose)
  while true do
    local first = redis.call('LPOP', QUEUE)
    if not first then
      return false
    end
    local entry = redis.call('LPOP', QUEUE) or ''
    local deadline, self, delay, channel = string.match(entry, '^(%d+) (%d+ (%d+) (%S+) .*)$')
    local left = deadline and deadline - ms or 0
    if left > 0 then
      -- The queue may have more waiters: the next release reads it.
      local token = grant(first, string.format('%d', left + delay), KEEP, self, hold, '+', propose)
      redis.call(PUBLISH, channel, 'granted ' .. first .. ' ' .. token)
      return true
    end
  end
end

-- Ends the hold: the lock passes on, under `propose` at least, is free, or stays reserved for a while.
local function finish(hold, is_unclean, propose)
  local since, min_hold, delay = string.match(hold or '', '^%+?%d+ %S+ (%d+) (%d+) (%d+)')
  local rest = since and math.floor(since / 1000) + min_hold - ms or 0
  if is_unclean and delay then
    rest = math.max(rest, tonumber(delay))
  end
  if rest > 0 then
    redis.call('SET', LOCK, '-', 'PX', string.format('%d', rest))
    -- The first waiter asks again, and learns until when.
    local first = redis.call('LRANGE', QUEUE, 0, 1)
    local channel = string.match(first[2] or '', '^%d+ %d+ %d+ (%S+)')
    if channel then
      redis.call(PUBLISH, channel, 'look ' .. first[1])
    end
  elseif not serve(hold, propose) then
    redis.call('DEL', LOCK)
  end
end
