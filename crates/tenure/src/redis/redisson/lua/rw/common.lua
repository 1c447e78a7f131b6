-- A lock as Redisson's RReadWriteLock has it: a hash. Its field `mode` is read or write, and each holder has a field with a
-- count of entries; the field of a writer ends in `:write`. Each entry of a reader also has a key, which lives as long as
-- the lease of that reader: when a reader leaves, Redisson lets the hash live as long as the longest of these keys.
-- HOLDERS is ours: OWNER to 'MODE TOKEN SINCE SELF', where MODE is s: shared, or x: exclusive.
local HOLDERS = KEYS[3]
-- The lock as it is called in Redisson's side keys.
local NAME = string.sub(CHANNEL, #'redisson_rwlock:' + 1)

-- Wakes waiters, with Redisson's message: '0' from a reader, '1' from a writer.
local function wake(message)
  publish(CHANNEL, message)
end

-- The key of one entry of a reader.
local function entry_key(owner, number)
  return NAME .. ':' .. owner .. ':rwlock_timeout:' .. number
end

-- Ms until the last lease of this reader ends; not above zero: the leases are over.
local function reader_left(owner, count)
  local left = -2
  for number = 1, tonumber(count) or 0 do
    left = math.max(left, redis.call('PTTL', entry_key(owner, number)))
  end
  return left
end

local function is_writer(owner)
  return redis.pcall('HEXISTS', LOCK, owner .. ':write') == 1
end

-- Whether the owner is a reader whose lease is not over. Of a reader whose lease is over the field can still be there.
local function is_reader(owner)
  return redis.pcall('HEXISTS', LOCK, owner) == 1 and redis.call('EXISTS', entry_key(owner, 1)) == 1
end

-- Ends what our owner holds. 1: its lease was not over. 0: it was, or there is no such hold.
local function end_hold(owner)
  redis.call('HDEL', HOLDERS, owner)
  if is_writer(owner) then
    redis.call('HDEL', LOCK, owner .. ':write')
    if redis.call('HLEN', LOCK) == 1 then
      redis.call('DEL', LOCK)
    else
      redis.call('HSET', LOCK, 'mode', 'read')
    end
    wake('1')
    return 1
  end
  if redis.pcall('HEXISTS', LOCK, owner) ~= 1 then
    return 0
  end
  redis.call('HDEL', LOCK, owner)
  local ended = redis.call('DEL', entry_key(owner, 1))
  local left, fields = -2, redis.call('HGETALL', LOCK)
  for i = 1, #fields, 2 do
    left = math.max(left, reader_left(fields[i], fields[i + 1]))
  end
  if left > 0 then
    redis.call('PEXPIRE', LOCK, left)
  else
    redis.call('DEL', LOCK)
    wake('0')
  end
  return ended
end
