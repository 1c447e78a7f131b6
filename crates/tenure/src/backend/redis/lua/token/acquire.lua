-- ARGV: OWNER TTL WAIT PLACE PROPOSE SELF. Asked again with the same owner it is a sign of life, and the
-- way to learn of a grant whose message was lost.
-- {1, token}: held for TTL from now on.
-- {0, ms until the lock runs out (-1: never), whether its holder is a stranger, how many are before us}
-- {-1, type}: the key is no lock of this kind.
local owner, ttl, self = ARGV[1], tonumber(ARGV[2]), ARGV[6]
local holder = redis.pcall('GET', LOCK)
if type(holder) == 'table' then
  return {-1, redis.call('TYPE', LOCK)['ok']}
end
if not holder then
  if redis.call('EXISTS', QUEUE) == 0 or not serve() then
    local propose = tonumber(ARGV[5])
    return {1, grant(owner, ttl, self, propose > 0 and propose or nil)}
  end
  holder = redis.call('GET', LOCK)
end
local token, known = string.match(redis.call('GET', HOLD) or '', '^(%d+) (%S+)')
if holder == owner then
  if known ~= owner then
    token = grant(owner, ttl, self)
  end
  redis.call('PEXPIRE', LOCK, string.format('%.0f', ttl + delay_of(self)))
  return {1, token}
end
local left = redis.call('PTTL', LOCK)
local stranger = (known ~= holder and holder ~= '-') and 1 or 0
if ARGV[3] == '0' then
  return {0, left, stranger, 0}
end
if not redis.call('ZSCORE', QUEUE, owner) then
  local last = redis.call('ZRANGE', QUEUE, -1, -1, 'WITHSCORES')
  redis.call('ZADD', QUEUE, (last[2] or 0) + 1, owner)
end
redis.call('HSET', WAIT, owner, string.format('%.0f ', ms + ARGV[4]) .. self)
-- Longer than any place is good for.
redis.call('PEXPIRE', QUEUE, 15000)
redis.call('PEXPIRE', WAIT, 15000)
return {0, left, stranger, redis.call('ZRANK', QUEUE, owner)}
