-- @common
-- ARGV: OWNER MODE. 1: the hold is shared. 0: the owner has no hold.
local owner = ARGV[1]
if is_writer(owner) then
  redis.call('SET', entry_key(owner, 1), 1, 'PX', redis.call('PTTL', LOCK))
  redis.call('HDEL', LOCK, owner .. ':write')
  redis.call('HSET', LOCK, 'mode', 'read', owner, 1)
  local about = string.gsub(redis.call('HGET', HOLDERS, owner) or 's 0 0 0 0 - ', '^x', 's')
  redis.call('HSET', HOLDERS, owner, about)
  -- Redisson publishes nothing here, so its readers wait until the lease ends.
  wake('1')
end
return is_reader(owner) and 1 or 0
