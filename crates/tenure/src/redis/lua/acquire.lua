-- ARGV: OWNER LIVE SELF KEEP 'PLACE FIRST' [PROPOSE]. LIVE is TTL + DELAY, and MIN_HOLD at least; KEEP says how long the
-- token is kept. PLACE says how long a place in the queue is good for, and is 0 for an owner that does not wait. FIRST is 0
-- for an owner that may have asked before: the request then keeps its place, and learns of a grant whose message was lost.
-- PROPOSE is the least token to grant under.
-- token: held, and LOCK lives for LIVE from now on.
-- {0, ms until the lock expires (-1: never), whether its holder is foreign, how many waiters are ahead, last token}
-- {-1, type}: the key is no lock of this format.

-- Nearly always the lock is free and its queue empty: that case takes as few commands as possible.
local call, byte = redis.call, string.byte
local known = call('GET', KEYS[2])
if not known or byte(known) ~= 43 then
  if call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then
    local clock = call('TIME')
    local since = clock[1] * 1000000 + clock[2]
    local stamp = string.format('%d', since)
    local token, digits = since, stamp
    -- Numbers with the same count of digits have the order of their digits: 16 from 2001 until 2286.
    local is_later = not known or #stamp == 16 and byte(known, 17) == 32 and string.sub(known, 1, 16) < stamp
    if ARGV[6] or not is_later then
      token = ARGV[6] and tonumber(ARGV[6]) or since
      local last = known and tonumber(string.match(known, '^%d+')) or 0
      if last >= token then
        token = last + 1
      end
      digits = string.format('%d', token)
    end
    call('SET', KEYS[2], digits .. ' ' .. ARGV[1] .. ' ' .. stamp .. ' ' .. ARGV[3], 'PX', ARGV[4])
    return token
  end
end
-- @common
-- @extend
local owner, self, hold = ARGV[1], ARGV[3], known
local place, is_first = string.match(ARGV[5], '^(%d+) (%d)$')
local holder = redis.pcall('GET', LOCK)
if type(holder) == 'table' then
  return {-1, redis.call('TYPE', LOCK)['ok']}
end
local all
if holder == '*' then
  all = settle()
  holder, hold = redis.call('GET', LOCK), redis.call('GET', HOLD)
end
if not holder then
  if not serve(hold) then
    return tonumber(grant(owner, ARGV[2], ARGV[4], self, hold, '', ARGV[6] and tonumber(ARGV[6])))
  end
  holder, hold = redis.call('GET', LOCK), redis.call('GET', HOLD)
end
local token, holds = string.match(hold or '', '^%+?(%d+) (%S+)')
if holder == owner then
  if holds ~= owner then
    return tonumber(grant(owner, ARGV[2], ARGV[4], self, hold, '+'))
  end
  extend(LOCK, HOLD, ARGV[2], ARGV[4])
  return tonumber(token)
end
local left = all and all.left - ms or redis.call('PTTL', LOCK)
local foreign = (holds ~= holder and holder ~= '-') and 1 or 0
if place == '0' then
  return {0, left, foreign, 0, tonumber(token or 0)}
end
local entry = string.format('%d ', ms + place) .. self
return {0, left, foreign, enqueue(owner, entry, is_first, KEEP, place, hold), tonumber(token or 0)}
