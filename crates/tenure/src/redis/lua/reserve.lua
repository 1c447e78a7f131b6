-- KEYS: LOCK HOLD. ARGV: OWNER FIRST LAST. Reserves the tokens from FIRST, under which the lock was granted, to LAST: HOLD has
-- LAST as its token from now on, and FIRST in its record. One of several servers may have granted another token than FIRST; if
-- that is greater than LAST, nothing is changed. 1: later grants get greater tokens than LAST. 0: the lock is not ours, or has
-- other tokens reserved.
local owner, first, last = ARGV[1], ARGV[2], ARGV[3]
local held = redis.call('MGET', KEYS[1], KEYS[2])
local mark, token, holds, about = string.match(held[2] or '', '^(%+?)(%d+) (%S+)( .*)$')
if held[1] ~= owner or holds ~= owner then
  return 0
end
local turn = string.match(about, ',"turn":(%d+)[,}]')
if turn then
  return turn == first and token == last and 1 or 0
end
if tonumber(token) <= tonumber(last) then
  about = string.gsub(about, '}$', ',"turn":' .. first .. '}', 1)
  redis.call('SET', KEYS[2], mark .. last .. ' ' .. owner .. about, 'KEEPTTL')
end
return 1
