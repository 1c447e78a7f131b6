-- @common
-- The holders: {'*' or '' or '?' and a type, ms to live, hold, entry, entry..}. Nothing is changed. An entry is '*' OWNER,
-- ms to live, MODE, TOKEN, SINCE, SELF; of a holder that is not ours TOKEN is '-'. Redisson's waiters are not stored.
local free = redis.pcall('GET', LOCK)
if type(free) == 'table' then
  return {'?' .. redis.call('TYPE', LOCK)['ok'], redis.call('PTTL', LOCK), ''}
elseif free and not string.match(free, '^-?%d+$') then
  return {'?string that is no number', redis.call('PTTL', LOCK), ''}
end
local answer = {'', -1, redis.call('GET', HOLD) or ''}
-- A limit that is enough for people.
local held = redis.call('ZRANGEBYSCORE', DEADLINES, '(' .. string.format('%.0f', ms), '+inf', 'WITHSCORES', 'LIMIT', 0, 1000)
local total = (tonumber(free or 0)) + redis.call('ZCARD', DEADLINES)
for i = 1, #held, 2 do
  local owner = owner_of(held[i])
  local about = redis.call('HGET', HOLDERS, owner) or string.format('p%d - 0 0 0 -', math.max(total, 1))
  answer[1] = '*'
  answer[#answer + 1] = string.format('*%s %.0f ', owner, left_until(held[i + 1])) .. about
end
return answer
