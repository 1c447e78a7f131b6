-- KEYS: LOCK, HOLD, HOLDERS, and again.. ARGV: OWNER, ms to live (0: change nothing), ms to keep the token, and again..
-- For each lock 1: still ours, in any mode. 0: not ours. -1: held by another owner alone, or reserved.
local clock = redis.call('TIME')
local ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local answers = {}
for i = 1, #KEYS / 3 do
  local lock, hold, holders = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local owner, live, keep = ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), ARGV[3 * i]
  local holder = redis.pcall('GET', lock)
  local entry = holder == '*' and redis.call('HGET', holders, owner)
  local deadline, rest = string.match(entry or '', '^(%d+)( .*)$')
  if holder == owner then
    answers[i] = 1
    if live > 0 then
      redis.call('PEXPIRE', lock, live)
      redis.call('PEXPIRE', hold, keep)
    end
  elseif deadline and tonumber(deadline) > ms then
    answers[i] = 1
    if live > 0 then
      redis.call('HSET', holders, owner, string.format('%d', ms + live) .. rest)
      if redis.call('PTTL', lock) < live then
        redis.call('PEXPIREAT', lock, string.format('%d', ms + live))
        redis.call('PEXPIREAT', holders, string.format('%d', ms + live))
      end
      redis.call('PEXPIRE', hold, keep)
    end
  else
    answers[i] = (holder and holder ~= '*') and -1 or 0
  end
end
return answers
