-- KEYS: LOCK of each, HOLD of each. ARGV: OWNER of each.
-- For each lock 1: it was ours, and is free. 0: it was not ours or has a queue, and nothing was done.
local byte, KEYS, ARGV, count = string.byte, KEYS, ARGV, #ARGV
local held = redis.call('MGET', unpack(KEYS))
local free, answers, ours = {}, {}, 0
for i = 1, count do
  local hold = held[count + i]
  if held[i] == ARGV[i] and hold and byte(hold) ~= 43 then
    ours = ours + 1
    free[ours] = KEYS[i]
    answers[i] = 1
  else
    answers[i] = 0
  end
end
if ours > 0 then
  redis.call('DEL', unpack(free))
end
return answers
