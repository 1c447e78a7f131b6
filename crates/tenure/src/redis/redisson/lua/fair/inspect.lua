-- @common
-- The holder and the waiters: {owner, ms to live, hold, waiter, waiter..}. Nothing is changed. Of a waiter that is not ours
-- '?' and its owner.
local fields = redis.pcall('HKEYS', LOCK)
local owner = fields.err and ('?' .. redis.call('TYPE', LOCK)['ok']) or fields[1] or ''
if not fields.err and redis.call('HEXISTS', LOCK, 'mode') == 1 then
  owner = '?hash of a read-write lock'
end
local answer = {owner, redis.call('PTTL', LOCK), redis.call('GET', HOLD) or ''}
-- A limit that is enough for people.
for _, waiter in ipairs(redis.call('LRANGE', QUEUE, 0, 999)) do
  local deadline = deadline_of(waiter)
  if not deadline or deadline > ms then
    answer[#answer + 1] = redis.call('HGET', HOLDERS, waiter) or '?' .. waiter
  end
end
return answer
