-- KEYS: LOCK, HOLD, ASKED, and again.. ARGV: OWNER, ms to live (0: change nothing), ms to keep the token, and again..
-- As renew.lua. 2: still ours, and its holder is asked to let go.
-- @extend
local answers = {}
for i = 1, #KEYS / 3 do
  local lock, hold, asked = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local owner, ttl, keep = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  local holder = redis.pcall('GET', lock)
  if holder == owner then
    local is_asked = redis.call('GET', asked) == owner
    if ttl ~= '0' and extend(lock, hold, ttl, keep) and is_asked then
      redis.call('PEXPIRE', asked, ttl)
    end
    answers[i] = is_asked and 2 or 1
  else
    answers[i] = holder and -1 or 0
  end
end
return answers
