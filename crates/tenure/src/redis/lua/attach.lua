-- KEYS: LOCK HOLD [HOLDERS] [ASKED], with HOLDERS unless MODE is x. ARGV: OWNER TTL MODE [CHANNEL]. MODE is x: exclusive, or
-- the first letter of another mode. The hold lasts for TTL from now on, and as long as its DELAY and MIN_HOLD say; a later
-- end stays. Its record says from now on that it was detached. With CHANNEL the client with that channel is told what happens
-- to the hold.
-- {1, DELAY, MIN_HOLD, ms that are left of it, whether the holder is asked to let go}: the hold is there, in MODE or more.
-- {0}: it is not. {-1}: the lock is held by another owner alone, or reserved.
-- @extend
local clock = redis.call('TIME')
local ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local lock, hold, owner, ttl, mode = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local holders = mode ~= 'x' and KEYS[3]
local asked = KEYS[holders and 4 or 3]
-- The modes of a hold that include MODE.
local enough = {s = 'suw', u = 'uw', p = 'p'}

local holder = redis.pcall('GET', lock)
local stored, deadline, before, since, min_hold, delay, channel, about
if holder == owner then
  stored = redis.call('GET', hold) or ''
  local known
  before, known, since, min_hold, delay, channel, about =
    string.match(stored, '^(%+?%d+ (%S+) )(%d+) (%d+) (%d+) (%S+)( .*)$')
  if known ~= owner then
    -- The record is lost, and with it DELAY and MIN_HOLD.
    before, since, min_hold, delay = nil, 0, 0, 0
  end
else
  stored = holders and holder == '*' and redis.call('HGET', holders, owner) or ''
  local kind
  deadline, before, kind, since, min_hold, delay, channel, about =
    string.match(stored, '^(%d+)( (%a)%d* %d+ )(%d+) (%d+) (%d+) (%S+)( .*)$')
  if not deadline or tonumber(deadline) <= ms or not string.find(enough[mode], kind, 1, true) then
    return {(holder and holder ~= '*') and -1 or 0}
  end
end
local record
if before then
  if not is_detached(about) then
    about = string.gsub(about, '}$', ',"detached":true}', 1)
  end
  record = before .. since .. ' ' .. min_hold .. ' ' .. delay .. ' ' .. (ARGV[4] or channel) .. about
end
local rest = math.max(math.floor(since / 1000) + min_hold - ms, 0)
local live = math.max(ttl + delay, rest, (deadline or 0) - ms)
local left = redis.call('PTTL', lock)
if deadline then
  local last = string.format('%d', ms + live)
  redis.call('HSET', holders, owner, last .. record)
  if left < live then
    redis.call('PEXPIREAT', lock, last)
    redis.call('PEXPIREAT', holders, last)
  end
else
  if record and record ~= stored then
    redis.call('SET', hold, record, 'KEEPTTL')
  end
  if left < live then
    redis.call('PEXPIRE', lock, string.format('%d', live))
  end
end
-- HOLD must not end before LOCK, and keeps the token for a day at least.
redis.call('PEXPIRE', hold, string.format('%d', math.max(86400000, 2 * math.max(left, live))))
local is_asked = asked and redis.call('GET', asked) == owner
if is_asked then
  redis.call('PEXPIRE', asked, string.format('%d', deadline and live or math.max(left, live)))
end
return {1, tonumber(delay), tonumber(min_hold), rest, is_asked and 1 or 0}
