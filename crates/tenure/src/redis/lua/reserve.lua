-- KEYS: LOCK HOLD. ARGV: OWNER FIRST LAST. Reserves the tokens from FIRST, under which the lock was granted, to LAST: HOLD has
-- LAST as its token from now on, and FIRST in its record. 1: they are reserved. 0: the lock is not ours under FIRST.
local owner, first, last = ARGV[1], ARGV[2], ARGV[3]
local held = redis.call('MGET', KEYS[1], KEYS[2])
local mark, token, holds, about = string.match(held[2] or '', '^(%+?)(%d+) (%S+)( .*)$')
if held[1] ~= owner or holds ~= owner then
  return 0
end
local turn = ',"turn":' .. first
if token == first then
  about = string.gsub(about, '}$', turn .. '}', 1)
  redis.call('SET', KEYS[2], mark .. last .. ' ' .. owner .. about, 'KEEPTTL')
  return 1
end
return token == last and string.find(about, turn, 1, true) and 1 or 0
