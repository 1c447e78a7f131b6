-- KEYS: LOCK HOLD QUEUE HOLDERS. ARGV: LIVE SELF KEEP, OWNER of each. Shared holds of one lock, for owners that ask for the
-- first time. For each owner its token. 0: the lock is not free for readers or has a queue, and nothing was done.
local call, live, keep, first = redis.call, tonumber(ARGV[1]), ARGV[3], 4
local answers, fields = {}, {}
local known = call('GET', KEYS[2])
local held = redis.pcall('GET', KEYS[1])
if known and string.byte(known) == 43 or held and held ~= '*' then
  for i = first, #ARGV do
    answers[#answers + 1] = 0
  end
  return answers
end
local clock = call('TIME')
local us = clock[1] * 1000000 + clock[2]
local deadline = string.format('%d', math.floor(us / 1000) + live)
local since = string.format('%d', us)
local last = math.max(known and tonumber(string.match(known, '^%d+')) or 0, us - 1)
for i = first, #ARGV do
  last = last + 1
  answers[#answers + 1] = last
  fields[#fields + 1] = ARGV[i]
  fields[#fields + 1] = string.format('%s s %d %s ', deadline, last, since) .. ARGV[2]
end
if not held then
  call('DEL', KEYS[4])
end
call('HSET', KEYS[4], unpack(fields))
local left = held and call('PTTL', KEYS[1]) or -1
if left < live then
  call('SET', KEYS[1], '*', 'PX', ARGV[1])
  call('PEXPIREAT', KEYS[4], deadline)
elseif 2 * left > tonumber(keep) then
  -- HOLD must not end before LOCK, which lasts for another holder.
  keep = string.format('%d', 2 * left)
end
call('SET', KEYS[2], string.format('%d * %s 0 0 -', last, since), 'PX', keep)
return answers
