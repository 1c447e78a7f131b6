-- @common
-- ARGV: OWNER. 1: the lock was ours, and is free. 0: it was not.
if not is_ours(ARGV[1]) then
  return 0
end
redis.call('DEL', LOCK)
wake()
return 1
