-- KEYS: LOCK of each, HOLD of each. ARGV: LIVE SELF KEEP, OWNER of each. Takes all of the locks, or none.
-- {token of each}: all are held.
-- N: the lock at this position is held by others, or reserved.
-- 0: nothing was done, because a lock may have waiters or several holders, or a key is no lock of this format.
local call, byte = redis.call, string.byte
local count = #KEYS / 2
local values = call('MGET', unpack(KEYS))
for i = 1, count do
  if values[i] and values[i] ~= '*' then
    return i
  end
end
for i = 1, count do
  local known = values[count + i]
  -- A key that is no string has no value in MGET.
  if values[i] or known and byte(known) == 43 or not known and call('EXISTS', KEYS[count + i]) == 1
    or call('EXISTS', KEYS[i]) == 1 then
    return 0
  end
end
local clock = call('TIME')
local since = clock[1] * 1000000 + clock[2]
local about = string.format(' %d ', since) .. ARGV[2]
local tokens = {}
for i = 1, count do
  local hold, known, owner = KEYS[count + i], values[count + i], ARGV[3 + i]
  local last = known and tonumber(string.match(known, '^%d+')) or 0
  local token = last >= since and last + 1 or since
  call('SET', KEYS[i], owner, 'PX', ARGV[1])
  call('SET', hold, string.format('%d ', token) .. owner .. about, 'PX', ARGV[3])
  tokens[i] = token
end
return tokens
