-- @common
-- ARGV: TOKEN. 1: the hold that had it is over. 0: there is none.
local token, owner, self = string.match(redis.call('GET', HOLD) or '', '^%+?(%d+) (%S+) %d+ (.*)$')
if token ~= ARGV[1] or redis.pcall('GET', LOCK) ~= owner then
  return 0
end
-- To the client itself: in the channels of a cluster's slots it listens while it waits only.
local channel = string.gsub(string.match(self, '^%d+ %d+ (%S+)'), '{%d+}:', '', 1)
redis.call('PUBLISH', channel, 'lost ' .. owner)
finish(true)
return 1
