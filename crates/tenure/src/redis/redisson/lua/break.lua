-- @common
-- ARGV: TOKEN. 1: the hold with that token was ended. 0: there is none. A hold of Redisson has no token.
local all = redis.call('HGETALL', HOLDERS)
for i = 1, #all, 2 do
  local token, channel = string.match(all[i + 1], '^%S+ (%d+) %d+ %d+ %d+ (%S+)')
  if token == ARGV[1] and string.byte(all[i]) ~= 45 then
    local ended = end_hold(all[i], '1')
    if ended == 1 then
      redis.call('PUBLISH', channel, 'lost ' .. string.match(all[i], '[^:]*$'))
    end
    return ended
  end
end
return 0
