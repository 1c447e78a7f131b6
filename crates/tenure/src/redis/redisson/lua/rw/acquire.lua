-- @common
-- ARGV: OWNER TTL SELF KEEP 'PLACE FIRST' MODE. MODE s: shared; without MODE the lock is to be exclusive. The replies are
-- those of the other formats. A request that is repeated by its owner renews the lease; the count of entries stays 1.
local owner, ttl, keep, reads = ARGV[1], tonumber(ARGV[2]), ARGV[4], ARGV[6] == 's'
local mode = redis.pcall('HGET', LOCK, 'mode')
if type(mode) == 'table' then
  return {-1, redis.call('TYPE', LOCK)['ok']}
end
if not mode and redis.call('EXISTS', LOCK) == 1 then
  return {-3, 'plain'}
end
local field = reads and owner or owner .. ':write'
local ours = mode and redis.call('HEXISTS', LOCK, field) == 1
if mode and not ours and not (reads and mode == 'read') then
  return {0, redis.call('PTTL', LOCK), 0, 0}
end
local token = ours and string.match(redis.call('HGET', HOLDERS, owner) or '', '^%S+ (%d+)')
if not token then
  local clock = redis.call('TIME')
  local us = clock[1] * 1000000 + clock[2]
  local last = tonumber(string.match(redis.call('GET', HOLD) or '', '%d+') or 0)
  token = string.format('%.0f', math.max(last + 1, us))
  local since = string.format('%.0f', us)
  redis.call('HSET', LOCK, 'mode', reads and 'read' or 'write', field, 1)
  redis.call('HSET', HOLDERS, owner, (reads and 's ' or 'x ') .. token .. ' ' .. since .. ' ' .. ARGV[3])
  redis.call('SET', HOLD, token .. ' * ' .. since .. ' 0 0 -', 'PX', keep)
end
if reads then
  redis.call('SET', entry_key(owner, 1), 1, 'PX', ttl)
end
-- The lock lives as long as the longest lease.
for _, key in ipairs({LOCK, HOLDERS}) do
  if redis.call('PTTL', key) < ttl then
    redis.call('PEXPIRE', key, ttl)
  end
end
return tonumber(token)
