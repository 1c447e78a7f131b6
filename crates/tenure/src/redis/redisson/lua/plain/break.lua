-- @common
-- ARGV: TOKEN. 1: the hold with that token was ended. 0: there is none.
local token, owner, self = string.match(redis.call('GET', HOLD) or '', '^%+?(%d+) (%S+) %d+ (.*)$')
if token ~= ARGV[1] or not is_ours(owner) then
  return 0
end
redis.call('PUBLISH', string.match(self, '^%d+ %d+ (%S+)'), 'lost ' .. string.match(owner, '[^:]*$'))
finish('1')
return 1
