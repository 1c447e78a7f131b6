-- @common
-- ARGV: OWNER LIVE SELF KEEP 'PLACE FIRST' MODE [PROPOSE], as in acquire.lua. The replies are the same.
local owner, live, self, keep = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local place, is_first = string.match(ARGV[5], '^(%d+) (%d)$')
local mode, limit = string.match(ARGV[6], '^(%a)(%d*)$')
local propose = ARGV[7] and tonumber(ARGV[7])
local hold = redis.call('GET', HOLD)
local holder = redis.pcall('GET', LOCK)
if type(holder) == 'table' then
  return {-1, redis.call('TYPE', LOCK)['ok']}
end
-- Often there is no queue and none but shared holders: that case takes as few commands as possible.
if mode == 's' and is_first == '1' and (not holder or holder == '*') and (not hold or string.byte(hold) ~= 43) then
  local last = parse_hold(hold)
  local token, since = string.format('%d', math.max(last + 1, propose or us)), string.format('%d', us)
  if not holder then
    redis.call('DEL', HOLDERS)
  end
  redis.call('HSET', HOLDERS, owner, string.format('%d s %s %s ', ms + live, token, since) .. self)
  if not holder or redis.call('PTTL', LOCK) < live then
    redis.call('SET', LOCK, '*', 'PX', ARGV[2])
    redis.call('PEXPIREAT', HOLDERS, string.format('%d', ms + live))
  end
  redis.call('SET', HOLD, token .. ' * ' .. since .. ' 0 0 -', 'PX', keep)
  return tonumber(token)
end
if holder == owner then
  -- It was upgraded meanwhile.
  redis.call('PEXPIRE', LOCK, live)
  return parse_hold(hold)
end
local all
if holder == '*' then
  all = settle()
  holder = redis.call('GET', LOCK)
end
if not holder and serve(hold) then
  holder = redis.call('GET', LOCK)
end
if not holder then
  redis.call('DEL', HOLDERS)
end
if not holder or holder == '*' then
  all = all or read_holders()
end
local entry = all and is_first == '0' and all.entries[owner]
if entry then
  entry.deadline = math.max(entry.deadline, ms + live)
  write_holder(all, owner, entry)
  return tonumber(entry.token)
end
local _, mark = parse_hold(redis.call('GET', HOLD))
if mark == '+' and redis.call('EXISTS', QUEUE) == 0 then
  mark = ''
end
if all and mark == '' and has_room(all, mode, limit) then
  return tonumber(join(all, owner, mode, limit, live, self, keep, '', propose))
end
local token = parse_hold(redis.call('GET', HOLD))
local left = all and all.left and all.left - ms or redis.call('PTTL', LOCK)
local _, holds = string.match(redis.call('GET', HOLD) or '', '^%+?(%d+) (%S+)')
local foreign = (holder and holds ~= holder and holder ~= '-') and 1 or 0
if place == '0' then
  return {0, left, foreign, 0, token}
end
local waiting = string.format('%d %s ', ms + place, ARGV[6]) .. self
return {0, left, foreign, enqueue(owner, waiting, is_first, keep), token}
