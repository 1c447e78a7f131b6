-- @common
-- ARGV: OWNER MODE. 1: the hold has that mode, which is s or u, and waits for nothing. 0: the owner has no such hold.
local owner, mode = ARGV[1], ARGV[2]
local holder = redis.pcall('GET', LOCK)
if holder == owner then
  local mark, token, since, self =
    string.match(redis.call('GET', HOLD) or '', '^(%+?)(%d+) %S+ (%d+) (.*)$')
  local left = redis.call('PTTL', LOCK)
  if not token or left <= 0 then
    return 0
  end
  local all = no_holders()
  redis.call('SET', HOLD, mark .. token .. ' * ' .. since .. ' 0 0 -', 'KEEPTTL')
  write_holder(all, owner, {deadline = ms + left, mode = mode, limit = '', token = token, since = since, self = self})
elseif holder == '*' then
  local all = read_holders()
  local entry = entry_of(all, owner)
  if not entry or entry.mode == 'p' or entry.mode == 's' and mode == 'u' then
    return 0
  end
  entry.mode = mode
  write_holder(all, owner, entry)
else
  return 0
end
settle()
return 1
