-- KEYS: LOCK, HOLD, LOCK, HOLD.. ARGV: OWNER, ms to live (0: change nothing), ms to keep the token, and again..
-- For each lock 1: still ours. 0: free. -1: held by another owner, or reserved.
-- @extend
local answers = {}
for i = 1, #KEYS / 2 do
  local lock, hold = KEYS[2 * i - 1], KEYS[2 * i]
  local owner, ttl, keep = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  local holder = redis.pcall('GET', lock)
  if holder == owner then
    if ttl ~= '0' then
      extend(lock, hold, ttl, keep)
    end
    answers[i] = 1
  else
    answers[i] = holder and -1 or 0
  end
end
return answers
