-- @common
-- ARGV: OWNER TOKEN. 1: the next token will be greater than TOKEN. 0: the lock is not ours.
if not is_ours(ARGV[1]) then
  return 0
end
local token = redis.call('GET', TOKEN)
if not token or tonumber(token) < tonumber(ARGV[2]) then
  redis.call('SET', TOKEN, ARGV[2])
end
return 1
