-- KEYS: LOCK, HOLD, HOLDERS, and again.. ARGV: OWNER, ms to live (0: change nothing), ms to keep the token, and again..
-- For each lock 1: still ours, in any mode. 0: not ours. -1: held by another owner alone, or reserved.
-- @extend
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
      extend(lock, hold, live, keep)
    end
  elseif deadline and tonumber(deadline) > ms then
    answers[i] = 1
    if live > 0 then
      local last = string.format('%d', is_detached(rest) and math.max(deadline, ms + live) or ms + live)
      local left = redis.call('PTTL', lock)
      local is_last = left < last - ms
      if is_last then
        left = last - ms
      end
      -- HOLD must not end before LOCK, which may last for another holder. This write comes first, because a server whose
      -- memory is full refuses a script whose first write needs memory.
      redis.call('PEXPIRE', hold, string.format('%d', math.max(keep, 2 * left)))
      redis.call('HSET', holders, owner, last .. rest)
      if is_last then
        redis.call('PEXPIREAT', lock, last)
        redis.call('PEXPIREAT', holders, last)
      end
    end
  else
    answers[i] = (holder and holder ~= '*') and -1 or 0
  end
end
return answers
