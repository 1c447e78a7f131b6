-- KEYS: LOCK, HOLD, HOLDERS, and again.. ARGV: OWNER, ms to live (0: change nothing), ms to keep the token, and again..
-- For each lock 1: still ours. 0: not ours.
local clock = redis.call('TIME')
local ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local answers = {}
for i = 1, #KEYS / 3 do
  local lock, hold, holders = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local owner, live, keep = ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), ARGV[3 * i]
  local deadlines = (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}') .. ':timeout'
  local id = string.gsub(owner, '%x%x', function(byte) return string.char(tonumber(byte, 16)) end)
  local deadline = tonumber(redis.call('ZSCORE', deadlines, id) or nil)
  if deadline and deadline > ms then
    answers[i] = 1
    if live > 0 then
      redis.call('ZADD', deadlines, string.format('%.0f', ms + live), id)
      if redis.call('PTTL', holders) < live then
        redis.call('PEXPIRE', holders, live)
      end
      redis.call('PEXPIRE', hold, keep)
    end
  else
    answers[i] = 0
  end
end
return answers
