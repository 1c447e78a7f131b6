-- @common
-- The holder: {owner, ms to live, hold}. Nothing is changed. Redisson's waiters are not stored.
local fields = redis.pcall('HKEYS', LOCK)
local owner = fields.err and ('?' .. redis.call('TYPE', LOCK)['ok']) or fields[1] or ''
return {owner, redis.call('PTTL', LOCK), redis.call('GET', HOLD) or ''}
