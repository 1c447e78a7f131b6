-- @common
-- The holder and the waiters: {value, ms to live, hold, entry, entry..}. Nothing is changed.
local holder = redis.pcall('GET', LOCK)
if type(holder) == 'table' then
  holder = '?' .. redis.call('TYPE', LOCK)['ok']
end
local answer = {holder or '', redis.call('PTTL', LOCK), redis.call('GET', HOLD) or ''}
-- A limit that is enough for people.
local queue = redis.call('LRANGE', QUEUE, 0, 1999)
for i = 2, #queue, 2 do
  local deadline, self = string.match(queue[i], '^(%d+) (.*)$')
  if deadline and tonumber(deadline) > ms then
    answer[#answer + 1] = self
  end
end
return answer
