-- @common
-- ARGV: TOKEN. 1: the hold that had it is over. 0: there is none.
local hold = redis.call('GET', HOLD)
local token, owner, own = string.match(hold or '', '^%+?(%d+) (%S+) %d+ %d+ %d+ (%S+)')
if token ~= ARGV[1] or redis.pcall('GET', LOCK) ~= owner then
  return 0
end
-- To the client itself: in the channels of a cluster's slots it listens while it waits only.
local channel = string.gsub(own, '{%d+}:', '', 1)
redis.call('PUBLISH', channel, 'lost ' .. owner)
finish(hold, true)
return 1
