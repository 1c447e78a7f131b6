-- KEYS: LOCK HOLD QUEUE HOLDERS. ARGV: OWNER of each.
-- For each owner 1: it had a shared hold, which is over. 0: it had none or the lock has a queue, and nothing was done.
local held = redis.call('MGET', KEYS[1], KEYS[2])
local is_quiet = held[1] == '*' and held[2] and string.byte(held[2]) ~= 43
local entries = is_quiet and redis.call('HMGET', KEYS[4], unpack(ARGV)) or {}
local clock = redis.call('TIME')
local ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local over, answers = {}, {}
for i = 1, #ARGV do
  answers[i] = 0
  if entries[i] and tonumber(string.match(entries[i], '^%d+')) > ms then
    over[#over + 1] = ARGV[i]
    answers[i] = 1
  end
end
if #over > 0 then
  redis.call('HDEL', KEYS[4], unpack(over))
  if redis.call('EXISTS', KEYS[4]) == 0 then
    redis.call('DEL', KEYS[1])
  end
end
return answers
