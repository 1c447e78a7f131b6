-- @common
-- @sighting
-- ARGV: TOKEN. KEYS[5] is ASKED. 1: the hold with that token was ended; a hold may have reserved several. 0: there is none. If it was that of a candidate,
-- observers are told.
if redis.pcall('GET', LOCK) == '*' then
  local all = read_holders()
  for owner in pairs(all.texts) do
    local entry = entry_of(all, owner)
    if entry.token == ARGV[1] and string.byte(owner) ~= 45 then
      redis.call('PUBLISH', (string.gsub(string.match(entry.self, '^%d+ %d+ (%S+)'), '{%d+}:', '', 1)), 'lost ' .. owner)
      local deadline = end_holder(owner, redis.call('HGET', HOLDERS, owner), '1')
      if not settle(nil, deadline) and redis.call('EXISTS', LOCK) == 0 then
        serve(redis.call('GET', HOLD))
      end
      return 1
    end
  end
  return 0
end
local hold = redis.call('GET', HOLD)
local token, owner, own = string.match(hold or '', '^%+?(%d+) (%S+) %d+ %d+ %d+ (%S+)')
-- The first of the tokens that are reserved for the hold.
local first = string.match(hold or '', ',"turn":(%d+)[,}]') or token
local asked = tonumber(ARGV[1])
if not token or asked < tonumber(first) or asked > tonumber(token) or redis.pcall('GET', LOCK) ~= owner then
  return 0
end
-- To the channel of the client: to the channels of a cluster's slots it is subscribed only while it waits.
local channel = string.gsub(own, '{%d+}:', '', 1)
redis.call('PUBLISH', channel, 'lost ' .. owner)
finish(hold, true)
if is_candidate(hold) then
  redis.call('DEL', KEYS[5])
  -- Who may end the hold need not have a right to this channel: observers also read.
  tell()
end
return 1
