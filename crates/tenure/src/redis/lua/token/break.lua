-- @common
-- ARGV: TOKEN. 1: the hold with that token was ended. 0: there is none.
local hold = redis.call('GET', HOLD)
local token, owner, own = string.match(hold or '', '^%+?(%d+) (%S+) %d+ %d+ %d+ (%S+)')
if token ~= ARGV[1] or redis.pcall('GET', LOCK) ~= owner then
  return 0
end
-- To the channel of the client: to the channels of a cluster's slots it is subscribed only while it waits.
local channel = string.gsub(own, '{%d+}:', '', 1)
redis.call('PUBLISH', channel, 'lost ' .. owner)
finish(hold, true)
return 1
