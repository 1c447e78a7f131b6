
-- What an RLock and a fair lock share: the lock is a hash with one field, the owner, and a count of entries.
local function is_ours(owner)
  return redis.pcall('HEXISTS', LOCK, owner) == 1
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
