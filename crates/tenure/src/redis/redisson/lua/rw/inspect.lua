-- @common
-- The holders: {'*' or '' or '?' and a type, ms to live, hold, entry, entry..}. Nothing is changed. An entry is '*' OWNER,
-- ms to live, MODE, TOKEN, SINCE, SELF; of a holder that is not ours TOKEN is '-'. Redisson's waiters are not stored.
local fields = redis.pcall('HGETALL', LOCK)
if fields.err then
  return {'?' .. redis.call('TYPE', LOCK)['ok'], redis.call('PTTL', LOCK), ''}
end
local value = #fields == 0 and '' or redis.call('HEXISTS', LOCK, 'mode') == 1 and '*' or '?hash without a mode'
local answer = {value, redis.call('PTTL', LOCK), redis.call('GET', HOLD) or ''}
if value == '*' then
  for i = 1, #fields, 2 do
    local writer = string.match(fields[i], '^(.*):write$')
    local left = writer and answer[2] or reader_left(fields[i], fields[i + 1])
    if fields[i] ~= 'mode' and (left > 0 or left == -1) then
      local owner = writer or fields[i]
      local about = redis.call('HGET', HOLDERS, owner) or (writer and 'x' or 's') .. ' - 0 0 0 -'
      answer[#answer + 1] = string.format('*%s %d ', owner, left) .. about
    end
  end
end
return answer
