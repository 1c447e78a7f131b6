-- @common
-- ARGV: TOKEN. Asks the holder with that token to let go. KEYS[5] is ASKED. 1: the holder is asked. 0: there is no such hold.
local function ask(owner, own, left)
  redis.call('SET', KEYS[5], owner, 'PX', string.format('%d', math.max(left, 1)))
  -- As in break.lua, to the channel of the client.
  redis.call('PUBLISH', (string.gsub(own, '{%d+}:', '', 1)), 'asked ' .. owner)
  return 1
end

local holder = redis.pcall('GET', LOCK)
if holder == '*' then
  local all = read_holders()
  for owner in pairs(all.texts) do
    local entry = entry_of(all, owner)
    if entry.token == ARGV[1] and string.byte(owner) ~= 45 then
      return ask(owner, string.match(entry.self, '^%d+ %d+ (%S+)'), entry.deadline - ms)
    end
  end
  return 0
end
local token, owner, own = string.match(redis.call('GET', HOLD) or '', '^%+?(%d+) (%S+) %d+ %d+ %d+ (%S+)')
if token ~= ARGV[1] or holder ~= owner then
  return 0
end
return ask(owner, own, redis.call('PTTL', LOCK))
