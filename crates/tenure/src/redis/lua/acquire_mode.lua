-- ARGV: OWNER LIVE SELF KEEP 'PLACE FIRST' MODE [PROPOSE], as in acquire.lua. The replies are the same.

-- Often there is no queue, and none but shared holders or a free permit: that case takes as few commands as possible.
local call, byte, wanted = redis.call, string.byte, ARGV[6]
local known, is_shared, is_permit = call('GET', KEYS[2]), wanted == 's', byte(wanted) == 112
if (is_shared or is_permit) and byte(ARGV[5], -1) == 49 and (not known or byte(known) ~= 43) then
  local held = redis.pcall('GET', KEYS[1])
  -- Fields of holds that are over count here, too. Where they leave no room, the rest of the script removes them.
  if not held or held == '*' and (is_shared or call('HLEN', KEYS[4]) < tonumber(string.sub(wanted, 2))) then
    local clock = call('TIME')
    local us = clock[1] * 1000000 + clock[2]
    local since, live, keep = string.format('%d', us), ARGV[2], ARGV[4]
    local last = known and tonumber(string.match(known, '^%d+')) or 0
    local token = ARGV[7] and tonumber(ARGV[7]) or us
    token = math.max(last + 1, token)
    local digits = token == us and since or string.format('%d', token)
    local deadline = string.format('%d', math.floor(us / 1000) + live)
    if not held then
      call('DEL', KEYS[4])
    end
    call('HSET', KEYS[4], ARGV[1], deadline .. ' ' .. wanted .. ' ' .. digits .. ' ' .. since .. ' ' .. ARGV[3])
    local left = held and call('PTTL', KEYS[1]) or -1
    if left < tonumber(live) then
      call('SET', KEYS[1], '*', 'PX', live)
      call('PEXPIREAT', KEYS[4], deadline)
    elseif 2 * left > tonumber(keep) then
      -- HOLD must not end before LOCK, which lasts for another holder.
      keep = string.format('%d', 2 * left)
    end
    call('SET', KEYS[2], digits .. ' * ' .. since .. ' 0 0 -', 'PX', keep)
    return token
  end
end
-- @common
-- @extend
local owner, live, self, keep = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local place, is_first = string.match(ARGV[5], '^(%d+) (%d)$')
local mode, limit = string.match(wanted, '^(%a)(%d*)$')
local propose = ARGV[7] and tonumber(ARGV[7])
local hold, holder = known, redis.pcall('GET', LOCK)
if type(holder) == 'table' then
  return {-1, redis.call('TYPE', LOCK)['ok']}
end
if holder == owner then
  -- It was upgraded meanwhile.
  extend(LOCK, HOLD, live, keep)
  return parse_hold(hold)
end
local all
if holder == '*' and mode == 'p' and is_first == '1' and place ~= '0' then
  -- Often all permits are held, and owners wait for one of them: then nothing is due, and this owner only joins the queue.
  local token = string.match(hold or '', '^%+?(%d+) %* ')
  local first = token and ends_of_permits(tonumber(limit))
  local queued = first and redis.call('LRANGE', QUEUE, '0', '1')
  if first and (not queued[1] or waits_for(wanted, queued[2])) then
    local waiting = string.format('%d %s ', ms + place, wanted) .. self
    return {0, first - ms, 0, enqueue(owner, waiting, is_first, keep, place, hold), tonumber(token)}
  end
end
if holder == '*' then
  all = settle()
  holder, hold = all and '*' or redis.call('GET', LOCK), redis.call('GET', HOLD)
end
if not holder and serve(hold) then
  holder, hold = redis.call('GET', LOCK), redis.call('GET', HOLD)
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
local token, mark = parse_hold(hold)
if mark == '+' and redis.call('EXISTS', QUEUE) == 0 then
  mark = ''
end
if all and mark == '' and has_room(all, mode, limit) then
  return tonumber(join(all, owner, mode, limit, live, self, keep, '', propose))
end
local left = all and all.left and all.left - ms or redis.call('PTTL', LOCK)
local _, holds = string.match(hold or '', '^%+?(%d+) (%S+)')
local foreign = (holder and holds ~= holder and holder ~= '-') and 1 or 0
if place == '0' then
  return {0, left, foreign, 0, token}
end
local waiting = string.format('%d %s ', ms + place, wanted) .. self
return {0, left, foreign, enqueue(owner, waiting, is_first, keep, place, hold), token}
