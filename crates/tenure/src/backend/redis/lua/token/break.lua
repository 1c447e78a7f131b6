-- ARGV: TOKEN. 1: the hold that had it is over. 0: there is none.
local token, owner, self = string.match(redis.call('GET', HOLD) or '', '^(%d+) (%S+) %d+ (.*)$')
if token ~= ARGV[1] or redis.pcall('GET', LOCK) ~= owner then
  return 0
end
tell(self, 'lost ' .. owner)
finish(true)
return 1
