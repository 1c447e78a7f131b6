-- @common
-- ARGV: OWNER TTL SELF KEEP 'PLACE FIRST'. The replies are those of the other formats.
-- A request that is repeated by its owner renews the lease, or keeps the owner's place in the queue.
local owner, ttl, self, keep = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local place = tonumber(string.match(ARGV[5], '^%d+'))
local ours = redis.pcall('HEXISTS', LOCK, owner)
if type(ours) == 'table' then
  return {-1, redis.call('TYPE', LOCK)['ok']}
end

-- Redisson subtracts the whole time of a waiter, 300 s by default, from the deadlines behind it when that waiter is granted.
-- Behind such a waiter our deadline is as late as that of another one.
local REDISSON_PLACE = 300000

local function is_tenure(waiter)
  return #waiter == 65 and string.match(waiter, '^%x+:%x+$') ~= nil
end

-- Takes a place in the queue, or keeps it. Returns how many waiters are ahead.
local function enqueue()
  local queue, at = find(owner)
  local is_behind_redisson = false
  for i = 1, (at or #queue + 1) - 1 do
    is_behind_redisson = is_behind_redisson or not is_tenure(queue[i])
  end
  local old, before = deadline_of(owner), deadline_of(queue[(at or #queue + 1) - 1]) or 0
  local deadline = math.max(ms, before) + (is_behind_redisson and REDISSON_PLACE or place)
  if is_behind_redisson and old then
    deadline = math.max(deadline, old)
  end
  redis.call('ZADD', DEADLINES, string.format('%.0f', deadline), owner)
  redis.call('HSET', HOLDERS, owner, self)
  redis.call('PEXPIRE', HOLDERS, 15000)
  if not at then
    return redis.call('RPUSH', QUEUE, owner) - 1
  end
  if old and old ~= deadline then
    shift(queue, at, deadline - old)
  end
  return at - 1
end

if ours == 0 then
  purge()
  local is_free = redis.call('EXISTS', LOCK) == 0
  local first = redis.call('LINDEX', QUEUE, 0)
  if not is_free or first and first ~= owner then
    if redis.call('HEXISTS', LOCK, 'mode') == 1 then
      return {-3, 'rw'}
    end
    if is_free then
      -- The first waiter may have missed a message.
      wake()
    end
    return {0, redis.call('PTTL', LOCK), 0, place > 0 and enqueue() or 0}
  end
  if first then
    leave(owner)
  end
end
local last, known = string.match(redis.call('GET', HOLD) or '', '^%+?(%d+) (%S+)')
local token = last
if ours == 0 or known ~= owner then
  token = string.format('%.0f', math.max((tonumber(last) or 0) + 1, us))
  redis.call('HSET', LOCK, owner, 1)
  redis.call('SET', HOLD, token .. ' ' .. owner .. ' ' .. string.format('%.0f', us) .. ' ' .. self, 'PX', keep)
end
redis.call('PEXPIRE', LOCK, ttl)
return tonumber(token)
