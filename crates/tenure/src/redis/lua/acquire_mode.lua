-- ARGV: OWNER LIVE SELF KEEP 'PLACE FIRST' MODE [PROPOSE], as in acquire.lua. The replies are the same.

-- Often there is no queue, and none but shared holders or a free permit: that case takes as few commands as possible.
local known = redis.call('GET', KEYS[2])
local kind, permits = string.match(ARGV[6], '^([sp])(%d*)$')
if kind and string.byte(ARGV[5], -1) == 49 and (not known or string.byte(known) ~= 43) then
  local held = redis.pcall('GET', KEYS[1])
  -- Fields of holds that are over count here, too. Where they leave no room, the rest of the script removes them.
  if not held or held == '*' and (kind == 's' or redis.call('HLEN', KEYS[4]) < tonumber(permits)) then
    local clock = redis.call('TIME')
    local since = clock[1] * 1000000 + clock[2]
    local last = known and tonumber(string.match(known, '^%d+')) or 0
    local token = string.format('%d', math.max(last + 1, ARGV[7] and tonumber(ARGV[7]) or since))
    local deadline = string.format('%d', math.floor(since / 1000) + ARGV[2])
    local keep = ARGV[4]
    since = string.format('%d', since)
    if not held then
      redis.call('DEL', KEYS[4])
    end
    redis.call('HSET', KEYS[4], ARGV[1], deadline .. ' ' .. ARGV[6] .. ' ' .. token .. ' ' .. since .. ' ' .. ARGV[3])
    local left = held and redis.call('PTTL', KEYS[1]) or -1
    if left < tonumber(ARGV[2]) then
      redis.call('SET', KEYS[1], '*', 'PX', ARGV[2])
      redis.call('PEXPIREAT', KEYS[4], deadline)
    elseif 2 * left > tonumber(keep) then
      -- HOLD must not end before LOCK, which lasts for another holder.
      keep = string.format('%d', 2 * left)
    end
    redis.call('SET', KEYS[2], token .. ' * ' .. since .. ' 0 0 -', 'PX', keep)
    return tonumber(token)
  end
end
-- @common
-- @extend
local owner, live, self, keep = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local place, is_first = string.match(ARGV[5], '^(%d+) (%d)$')
local mode, limit = string.match(ARGV[6], '^(%a)(%d*)$')
local propose = ARGV[7] and tonumber(ARGV[7])
local hold = redis.call('GET', HOLD)
local holder = redis.pcall('GET', LOCK)
if type(holder) == 'table' then
  return {-1, redis.call('TYPE', LOCK)['ok']}
end
if holder == owner then
  -- It was upgraded meanwhile.
  extend(LOCK, HOLD, live, keep)
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
  all = no_holders()
elseif holder == '*' then
  all = all or read_holders()
end
local entry = all and is_first == '0' and entry_of(all, owner)
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
return {0, left, foreign, enqueue(owner, waiting, is_first, keep, place), token}
