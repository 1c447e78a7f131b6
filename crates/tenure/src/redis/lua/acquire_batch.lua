-- KEYS: LOCK of each, HOLD of each. ARGV: TTL SELF KEEP, OWNER of each, and PROPOSE of each or none.
-- For each lock its token. 0: the lock is not free or has a queue, and nothing was done.
local call, byte, sub, KEYS, ARGV = redis.call, string.byte, string.sub, KEYS, ARGV
local ttl, keep, count = ARGV[1], ARGV[3], #KEYS / 2
local clock = call('TIME')
local since = clock[1] * 1000000 + clock[2]
local stamp = string.format('%d', since)
local about = ' ' .. stamp .. ' ' .. ARGV[2]
-- Until the year 2286, from 2001 on.
local has_16 = #stamp == 16
local holds = call('MGET', unpack(KEYS, count + 1))
local answers = {}
for i = 1, count do
  local hold, known, owner, propose = KEYS[count + i], holds[i], ARGV[3 + i], ARGV[3 + count + i]
  answers[i] = 0
  if (not known or byte(known) ~= 43) and call('SET', KEYS[i], owner, 'PX', ttl, 'NX') then
    local token, digits = since, stamp
    -- Numbers with the same count of digits have the order of their digits; a number with fewer digits is less.
    local is_later = not known or has_16 and byte(known, 17) == 32 and sub(known, 1, 16) < stamp
    if propose or not is_later then
      token = tonumber(propose) or since
      local last = known and tonumber(string.match(known, '^%d+')) or 0
      if last >= token then
        token = last + 1
      end
      digits = string.format('%d', token)
    end
    local text = digits .. ' ' .. owner .. about
    if known then
      call('SET', hold, text, 'PX', keep)
      answers[i] = token
    elseif call('SET', hold, text, 'PX', keep, 'NX') then
      answers[i] = token
    else
      -- The key is no string, which MGET does not tell from a missing key.
      call('DEL', KEYS[i])
    end
  end
end
return answers
