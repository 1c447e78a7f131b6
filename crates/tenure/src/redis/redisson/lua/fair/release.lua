-- @common
-- ARGV: OWNER [ENDED]. ENDED is as in the other formats. 1: the lock was ours, and is free or reserved. 0: it was not; if we
-- had a place in the queue, that place was removed.
purge()
if is_ours(ARGV[1]) then
  finish(ARGV[2] ~= '-' and ARGV[2])
  return 1
end
if leave(ARGV[1]) == 1 and redis.call('EXISTS', LOCK) == 0 then
  wake()
end
return 0
