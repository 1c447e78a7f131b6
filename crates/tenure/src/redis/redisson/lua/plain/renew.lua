-- KEYS: LOCK, HOLD, LOCK, HOLD.. ARGV: OWNER, ms to live (0: change nothing), ms to keep the token, and again..
-- For each lock 1: still ours. 0: free. -1: held by another owner, or reserved.
local answers = {}
for i = 1, #KEYS / 2 do
  local lock, hold = KEYS[2 * i - 1], KEYS[2 * i]
  local owner, ttl, keep = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  if redis.pcall('HEXISTS', lock, owner) == 1 then
    if ttl ~= '0' then
      redis.call('PEXPIRE', lock, ttl)
      redis.call('PEXPIRE', hold, keep)
    end
    answers[i] = 1
  else
    answers[i] = -redis.call('EXISTS', lock)
  end
end
return answers
