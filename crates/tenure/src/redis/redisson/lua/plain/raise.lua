-- @common
-- ARGV: OWNER TOKEN. The last token from now on, which is TOKEN at least. 0: the lock is not ours.
if not is_ours(ARGV[1]) then
  return 0
end
local token = redis.call('GET', TOKEN)
if not token or tonumber(token) < tonumber(ARGV[2]) then
  token = ARGV[2]
  redis.call('SET', TOKEN, token)
end
return tonumber(token)
