-- KEYS: LOCK, HOLD, LOCK, HOLD.. ARGV: OWNER of each lock.
-- For each lock 1: it was ours, and is free. 0: it was not, or somebody waits for it, and nothing was done.
local held = redis.call('MGET', unpack(KEYS))
local free, answers = {}, {}
for i = 1, #ARGV do
  local hold = held[2 * i]
  if held[2 * i - 1] == ARGV[i] and hold and string.byte(hold) ~= 43 then
    free[#free + 1] = KEYS[2 * i - 1]
    answers[i] = 1
  else
    answers[i] = 0
  end
end
if #free > 0 then
  redis.call('DEL', unpack(free))
end
return answers
