-- What the scripts about one lock share. Times are the server's.
local LOCK, HOLD, QUEUE, WAIT = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
local ms = math.floor(us / 1000)
-- A token outlives its hold by a day.
local KEEP = 86400000

-- SELF is what others need to know of an owner: MIN_HOLD DELAY CHANNEL HOLDER.
local function delay_of(self)
  return tonumber(string.match(self, '^%d+ (%d+)'))
end

-- Gives the lock to `owner` for `lease` ms, under a token that is greater than every one before,
-- also when the server has forgotten those. The caller knows that the lock is free.
local function grant(owner, lease, self, propose)
  local last = redis.call('GET', HOLD)
  local token = (last and tonumber(string.match(last, '%d+')) or 0) + 1
  token = string.format('%d', math.max(token, propose or us))
  redis.call('SET', LOCK, owner, 'PX', string.format('%d', lease + delay_of(self)))
  -- Marked, so that a release without waiters need not look for any.
  local mark = redis.call('EXISTS', QUEUE) == 1 and '+' or ''
  redis.call('SET', HOLD, string.format('%s%s %s %d ', mark, token, owner, us) .. self,
    'PX', string.format('%d', math.max(KEEP, 2 * lease)))
  return token
end

local function tell(self, message)
  redis.call(PUBLISH, string.match(self, '^%d+ %d+ (%S+)'), message)
end

-- Hands the free lock to the first waiter that has been heard of lately, for as long as that is good, under
-- `propose` at least. False: there is none.
local function serve(propose)
  while true do
    local first = redis.call('ZPOPMIN', QUEUE)[1]
    if not first then
      return false
    end
    local entry = redis.call('HGET', WAIT, first)
    redis.call('HDEL', WAIT, first)
    local deadline, self = string.match(entry or '', '^(%d+) (.*)$')
    local left = deadline and tonumber(deadline) - ms or 0
    if left > 0 then
      tell(self, 'granted ' .. first .. ' ' .. grant(first, left, self, propose))
      return true
    end
  end
end

-- Ends the hold: the lock passes on, is free, or stays reserved for a while.
local function finish(is_unclean)
  local since, min_hold, delay = string.match(redis.call('GET', HOLD) or '', '^%+?%d+ %S+ (%d+) (%d+) (%d+)')
  local rest = since and math.floor(since / 1000) + min_hold - ms or 0
  if is_unclean and delay then
    rest = math.max(rest, tonumber(delay))
  end
  if rest > 0 then
    redis.call('SET', LOCK, '-', 'PX', string.format('%d', rest))
    -- The first in the queue learns until when.
    local first = redis.call('ZRANGE', QUEUE, 0, 0)[1]
    local entry = first and redis.call('HGET', WAIT, first)
    if entry then
      tell(string.match(entry, '^%d+ (.*)$'), 'look ' .. first)
    end
  elseif not serve() then
    redis.call('DEL', LOCK)
  end
end
