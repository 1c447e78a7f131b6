-- @common
-- Who holds, who waits: {value, ms to live, hold, entry, entry..}; nothing is changed.
local holder = redis.pcall('GET', LOCK)
if type(holder) == 'table' then
  holder = '?' .. redis.call('TYPE', LOCK)['ok']
end
local answer = {holder or '', redis.call('PTTL', LOCK), redis.call('GET', HOLD) or ''}
-- Enough for people; a program that counts further asks the server.
local queue = redis.call('LRANGE', QUEUE, 0, 1999)
for i = 2, #queue, 2 do
  local deadline, self = string.match(queue[i], '^(%d+) (.*)$')
  if deadline and tonumber(deadline) > ms then
    answer[#answer + 1] = self
  end
end
return answer
