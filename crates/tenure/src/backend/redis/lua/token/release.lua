-- ARGV: OWNER, whether it ended before this release, whether MIN_HOLD or DELAY is set.
-- 1: it was ours. 0: it was not; if we had a place in the queue, we have none any more.
local owner = ARGV[1]
if redis.pcall('GET', LOCK) ~= owner then
  if redis.call('ZREM', QUEUE, owner) == 1 then
    redis.call('HDEL', WAIT, owner)
  end
  return 0
end
if ARGV[3] == '1' then
  finish(ARGV[2] == '1')
elseif not serve() then
  redis.call('DEL', LOCK)
end
return 1
