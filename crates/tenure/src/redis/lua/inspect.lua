-- @common
-- The holder and the waiters: {value, ms to live, hold, entry, entry..}. Nothing is changed. Shared holders come before the
-- waiters: '*' OWNER, ms to live, MODE, TOKEN, SINCE, SELF.
local holder = redis.pcall('GET', LOCK)
if type(holder) == 'table' then
  holder = '?' .. redis.call('TYPE', LOCK)['ok']
end
local answer = {holder or '', redis.call('PTTL', LOCK), redis.call('GET', HOLD) or ''}
if holder == '*' then
  local all = read_holders()
  for owner in pairs(all.texts) do
    local entry = entry_of(all, owner)
    answer[#answer + 1] = string.format('*%s %d %s%s %s %s ', owner, entry.deadline - ms, entry.mode, entry.limit,
      entry.token, entry.since) .. entry.self
  end
end
-- A limit that is enough for people.
local queue = redis.call('LRANGE', QUEUE, 0, 1999)
for i = 2, #queue, 2 do
  local deadline, self = string.match(queue[i], '^(%d+) (.*)$')
  if deadline and tonumber(deadline) > ms then
    answer[#answer + 1] = self
  end
end
return answer
