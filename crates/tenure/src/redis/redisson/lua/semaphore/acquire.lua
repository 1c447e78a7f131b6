-- @common
-- ARGV: OWNER TTL SELF KEEP 'PLACE FIRST' MODE. MODE is p and the number of permits; without MODE there is to be one permit.
-- The replies are those of the other formats. A request that is repeated by its owner renews the lease.
local owner, ttl, keep = ARGV[1], tonumber(ARGV[2]), ARGV[4]
local limit = tonumber(string.match(ARGV[6] or 'p1', '^p(%d+)$'))
local free = redis.pcall('GET', LOCK)
if type(free) == 'table' then
  return {-1, redis.call('TYPE', LOCK)['ok']}
elseif free and not string.match(free, '^-?%d+$') then
  return {-3, 'string'}
elseif free and redis.call('PTTL', LOCK) >= 0 then
  -- The permits that are held end with the key, before their leases.
  return {-3, 'expires'}
end
purge()
local held = redis.call('ZCARD', DEADLINES)
if free then
  free = tonumber(redis.call('GET', LOCK))
else
  free = limit - held
  if free < 0 then
    return {-4, held}
  end
  redis.call('SET', LOCK, free)
  wake(free)
end
if free + held ~= limit then
  return {-4, free + held}
end
local id = id_of(owner)
local ours = redis.call('ZSCORE', DEADLINES, id)
if not ours and free < 1 then
  local first = redis.call('ZRANGE', DEADLINES, 0, 0, 'WITHSCORES')
  return {0, left_until(first[2] or ms), 0, 0}
end
local token = ours and string.match(redis.call('HGET', HOLDERS, owner) or '', '^%S+ (%d+)')
if not token then
  local last = tonumber(string.match(redis.call('GET', HOLD) or '', '%d+') or 0)
  token = string.format('%.0f', math.max(last + 1, us))
  local since = string.format('%.0f', us)
  redis.call('HSET', HOLDERS, owner, (ARGV[6] or 'x') .. ' ' .. token .. ' ' .. since .. ' ' .. ARGV[3])
  redis.call('SET', HOLD, token .. ' * ' .. since .. ' 0 0 -', 'PX', keep)
end
if not ours then
  redis.call('DECRBY', LOCK, 1)
end
redis.call('ZADD', DEADLINES, string.format('%.0f', ms + ttl), id)
if redis.call('PTTL', HOLDERS) < ttl then
  redis.call('PEXPIRE', HOLDERS, ttl)
end
return tonumber(token)
