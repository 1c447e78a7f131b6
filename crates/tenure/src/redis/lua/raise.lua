-- @common
-- ARGV: OWNER TOKEN. The token that the hold has from now on: TOKEN, or a greater one if the hold has that already, or if
-- another shared holder has or had TOKEN or a greater one. 0: the lock is not ours.
local owner, wanted = ARGV[1], tonumber(ARGV[2])
local holder = redis.pcall('GET', LOCK)
local mark, token, rest = string.match(redis.call('GET', HOLD) or '', '^(%+?)(%d+)( .*)$')
if not token then
  return 0
end
local last = tonumber(token)
if holder == owner then
  if last < wanted then
    redis.call('SET', HOLD, mark .. ARGV[2] .. rest, 'KEEPTTL')
  end
  return math.max(last, wanted)
end
local all = holder == '*' and read_holders()
local entry = all and entry_of(all, owner)
if not entry then
  return 0
end
if tonumber(entry.token) < wanted then
  entry.token = string.format('%d', math.max(wanted, last + 1))
  write_holder(all, owner, entry)
  redis.call('SET', HOLD, mark .. entry.token .. rest, 'KEEPTTL')
end
return tonumber(entry.token)
