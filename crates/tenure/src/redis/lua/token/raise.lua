-- @common
-- ARGV: OWNER TOKEN. 1: the next token will be greater than TOKEN. 0: the lock is not ours.
if redis.pcall('GET', LOCK) ~= ARGV[1] then
  return 0
end
local mark, token, rest = string.match(redis.call('GET', HOLD) or '', '^(%+?)(%d+)( .*)$')
if not token then
  return 0
end
if tonumber(token) < tonumber(ARGV[2]) then
  redis.call('SET', HOLD, mark .. ARGV[2] .. rest, 'KEEPTTL')
end
return 1
