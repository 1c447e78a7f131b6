-- ARGV: OWNER NUMBER HOLDER. Replaces what is stored about the holder, unless a value with a greater number is there.
-- KEYS[5] is ASKED. 1: the hold is there. 0: it is not.
-- @sighting
local owner, number, about = ARGV[1], tonumber(ARGV[2]), ARGV[3]
if redis.pcall('GET', KEYS[1]) ~= owner then
  return 0
end
local before, stored = string.match(redis.call('GET', KEYS[2]) or '', '^(%+?%d+ %S+ %d+ %d+ %d+ %S+ )(.*)$')
if before and tonumber(string.match(stored, '"number":(%d+)}$') or 0) <= number then
  redis.call('SET', KEYS[2], before .. about, 'KEEPTTL')
  local told = tell()
  if type(told) == 'table' then
    return told
  end
end
return 1
