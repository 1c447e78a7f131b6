-- KEYS: the lock, its last token. ARGV: owner, ttl in ms, holder. Returns {token, 0}, or {0, ms until the lease ends}.
if redis.call('EXISTS', KEYS[1]) == 1 then
    return { 0, redis.call('PTTL', KEYS[1]) }
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local token = math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 1, now)
redis.call('SET', KEYS[2], string.format('%.0f', token))
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'token', string.format('%.0f', token),
    'holder', ARGV[3], 'since', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return { token, 0 }
