-- KEYS: ASKED. ARGV: OWNER. Removes the request to let go of a hold that has ended. 1: it was there. 0: it was not.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
