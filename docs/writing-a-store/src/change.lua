-- KEYS: the lock. ARGV: a field, its value, a ttl in ms. Changes the lock if the field has that value:
-- with a ttl of 0 the lock is deleted, else its lease runs for that long from now on. Returns 1 if it was changed.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
    return 0
elseif ARGV[3] == '0' then
    return redis.call('DEL', KEYS[1])
end
return redis.call('PEXPIRE', KEYS[1], ARGV[3])
