-- @common
-- ARGV: OWNER TTL SELF KEEP. The replies are those of the other format.
-- A request that is repeated by its owner renews the lease; the count of entries stays 1.
local owner, ttl, self = ARGV[1], ARGV[2], ARGV[3]
local ours = redis.pcall('HEXISTS', LOCK, owner)
if type(ours) == 'table' then
  return {-1, redis.call('TYPE', LOCK)['ok']}
end
if ours == 0 and redis.call('EXISTS', LOCK) == 1 then
  if redis.call('HEXISTS', LOCK, 'mode') == 1 then
    return {-3, 'rw'}
  end
  return {0, redis.call('PTTL', LOCK), 0, 0}
end
local token, known = string.match(redis.call('GET', HOLD) or '', '^(%d+) (%S+)')
if ours == 0 or known ~= owner then
  -- FencedLock counts up by one. We do too, but not from zero again after the server forgot.
  local clock = redis.call('TIME')
  local us = string.format('%.0f', clock[1] * 1000000 + clock[2])
  token = string.format('%.0f', redis.call('INCR', TOKEN))
  if tonumber(token) < tonumber(us) then
    token = us
    redis.call('SET', TOKEN, token)
  end
  redis.call('HSET', LOCK, owner, 1)
  redis.call('SET', HOLD, token .. ' ' .. owner .. ' ' .. us .. ' ' .. self,
    'PX', ARGV[4])
end
redis.call('PEXPIRE', LOCK, ttl)
return tonumber(token)
