-- @common
-- Who holds: {owner, ms to live, hold}; nothing is changed. Who waits is known to nobody.
local fields = redis.pcall('HKEYS', LOCK)
local owner = fields.err and ('?' .. redis.call('TYPE', LOCK)['ok']) or fields[1] or ''
return {owner, redis.call('PTTL', LOCK), redis.call('GET', HOLD) or ''}
