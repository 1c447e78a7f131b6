
-- The waiters of a lock: who is next, and how a release grants the lock to that waiter and wakes it (`serve`).

-- Grants shared holds to the first waiters in the queue, while there is room, under `propose` at least. True: one of the
-- holders is exclusive now.
local function serve_shared(all, propose)
  local upgrading = all.upgrading
  if upgrading then
    if all.count == 1 then
      local entry = entry_of(all, upgrading)
      local token = become_exclusive(upgrading, entry, keep_for(entry.deadline - ms), propose)
      redis.call(PUBLISH, string.match(entry.self, '^%d+ %d+ (%S+)'), 'granted ' .. upgrading .. ' ' .. token)
      return true
    end
    return false
  end
  while true do
    local first = redis.call('LRANGE', QUEUE, 0, 1)
    if not first[1] then
      return false
    end
    local deadline, mode, limit, self, min_hold, delay, channel =
      string.match(first[2] or '', '^(%d+) (%a)(%d*) ((%d+) (%d+) (%S+) .*)$')
    local until_ms = tonumber(deadline or string.match(first[2] or '', '^%d+') or 0)
    local is_good = until_ms > ms
    if is_good and (not mode or not has_room(all, mode, limit)) then
      return false
    end
    local live = math.max(until_ms - ms + (delay or 0), min_hold or 0)
    redis.call('LPOP', QUEUE)
    redis.call('LPOP', QUEUE)
    if is_good then
      local token = join(all, first[1], mode, limit, live, self, keep_for(live), '+', propose)
      redis.call(PUBLISH, channel, 'granted ' .. first[1] .. ' ' .. token)
    end
  end
end

-- Whether a waiter still waits, and for a hold of that mode.
local function waits_for(wanted, entry)
  local deadline, mode = string.match(entry, '^(%d+) (%S+)')
  return mode == wanted and tonumber(deadline) > ms
end

-- Passes the permit of `owner` to the first waiter, if that is all that is due. False: nothing was changed.
local function pass_permit(owner, hold)
  local queued = redis.call('LRANGE', QUEUE, '0', '3')
  local deadline, mode, limit, self, channel = string.match(queued[2] or '', '^(%d+) (p(%d+)) (0 0 (%S+) .*)$')
  if not deadline or tonumber(deadline) <= ms or queued[4] and not waits_for(mode, queued[4]) then
    return false
  end
  local _, last = ends_of_permits(tonumber(limit))
  if not last or redis.call('HDEL', HOLDERS, owner) == 0 then
    return false
  end
  local token = string.format('%d', math.max(parse_hold(hold) + 1, us))
  local since = string.format('%d', us)
  redis.call('HSET', HOLDERS, queued[1], deadline .. ' ' .. mode .. ' ' .. token .. ' ' .. since .. ' ' .. self)
  if deadline > last then
    redis.call('PEXPIREAT', LOCK, deadline)
    redis.call('PEXPIREAT', HOLDERS, deadline)
    last = deadline
  end
  redis.call('SET', HOLD, '+' .. token .. ' * ' .. since .. ' 0 0 -', 'PX', keep_for(last - ms))
  redis.call('LPOP', QUEUE)
  redis.call('LPOP', QUEUE)
  redis.call(PUBLISH, channel, 'granted ' .. queued[1] .. ' ' .. token)
  return true
end

-- Ends a shared hold, and returns its deadline. Its part of the lock stays reserved for a while, if the hold says so and
-- `ended` is not false; it is '1' if the hold ended before.
local function end_holder(owner, entry, ended)
  local deadline, kind, since, self = string.match(entry, '^(%d+)( %a%d* %d+) (%d+) (.*)$')
  local min_hold, delay = string.match(self, '^(%d+) (%d+)')
  redis.call('HDEL', HOLDERS, owner)
  local rest = ended and math.floor(since / 1000) + min_hold - ms or 0
  if ended == '1' then
    rest = math.max(rest, tonumber(delay))
  end
  if rest > 0 then
    kind = string.gsub(kind, 'w', 'u')
    redis.call('HSET', HOLDERS, '-' .. owner, string.format('%d%s %s ', ms + rest, kind, since) .. self)
    if redis.call('PTTL', LOCK) < rest then
      redis.call('PEXPIREAT', LOCK, string.format('%d', ms + rest))
      redis.call('PEXPIREAT', HOLDERS, string.format('%d', ms + rest))
    end
  end
  return tonumber(deadline)
end

-- Takes a place in the queue, or keeps it for `place` ms. Returns how many waiters are ahead. The caller knows what is in
-- `hold`.
local function enqueue(owner, entry, is_first, keep, place, hold)
  local at = is_first == '0' and redis.call('LPOS', QUEUE, owner)
  if at then
    redis.call('LSET', QUEUE, at + 1, entry)
  else
    at = redis.call('RPUSH', QUEUE, owner, entry) - 2
  end
  -- Longer than the place of any waiter is good for, so that a queue without waiters expires. A tenth of
  -- that may pass before the time is set again: otherwise each new waiter would set it.
  local life = math.max(15000, 2 * place)
  if redis.call('PTTL', QUEUE) < 0.9 * life then
    redis.call('PEXPIRE', QUEUE, string.format('%d', life))
  end
  if not hold then
    redis.call('SET', HOLD, '+0 - 0 0 0 -', 'PX', keep)
  elseif string.byte(hold) ~= 43 then
    redis.call('SET', HOLD, '+' .. hold, 'KEEPTTL')
  end
  return at / 2
end

-- Does what is due while LOCK is '*': removes holds whose lease is over, and serves the queue. Returns the holders; nil:
-- LOCK is not '*' any more. Waiters are granted places under `propose` at least. `ended` is the deadline of a holder that has
-- just left.
local function settle(propose, ended)
  local all = read_holders()
  if all.count == 0 then
    redis.call('DEL', LOCK)
    redis.call('DEL', HOLDERS)
    return nil
  end
  for _, field in ipairs(all.over) do
    redis.call('HDEL', HOLDERS, field)
  end
  if ended and ended > all.last then
    redis.call('PEXPIREAT', LOCK, string.format('%d', all.last))
    redis.call('PEXPIREAT', HOLDERS, string.format('%d', all.last))
  end
  return not serve_shared(all, propose) and all or nil
end

-- Removes the first waiter from the queue. After the grant is written: if the user may not write the grant, the waiter stays.
local function pop()
  redis.call('LPOP', QUEUE)
  redis.call('LPOP', QUEUE)
end

-- Grants the free lock to the first waiter whose place is still good, with the lease that is left of that place, under
-- `propose` at least, and wakes that waiter by a message to its client. If its hold is shared, the next waiters may follow.
-- False: no waiter is left.
local function serve(hold, propose)
  while true do
    local queued = redis.call('LRANGE', QUEUE, 0, 1)
    local first, entry = queued[1], queued[2] or ''
    if not first then
      return false
    end
    local deadline, self, min_hold, delay, channel = string.match(entry, '^(%d+) ((%d+) (%d+) (%S+) .*)$')
    local left = deadline and deadline - ms or 0
    local mode, limit
    if not deadline then
      deadline, mode, limit, self, min_hold, delay, channel =
        string.match(entry, '^(%d+) (%a)(%d*) ((%d+) (%d+) (%S+) .*)$')
      left = deadline and deadline - ms or 0
    end
    local live = math.max(left + (delay or 0), min_hold or 0)
    if left > 0 and mode then
      redis.call('DEL', HOLDERS)
      local all = no_holders()
      local token = join(all, first, mode, limit, live, self, keep_for(live), '+', propose)
      pop()
      redis.call(PUBLISH, channel, 'granted ' .. first .. ' ' .. token)
      serve_shared(all, propose)
      return true
    elseif left > 0 then
      -- The queue may have more waiters: the next release reads it.
      local token = grant(first, string.format('%d', live), keep_for(live), self, hold, '+', propose)
      pop()
      redis.call(PUBLISH, channel, 'granted ' .. first .. ' ' .. token)
      return true
    end
    pop()
  end
end

-- Has the first waiter ask again, so that it learns until when it waits.
local function wake_first()
  local first = redis.call('LRANGE', QUEUE, 0, 1)
  local channel = string.match(first[2] or '', '^%d+ %a?%d* ?%d+ %d+ (%S+)')
  if channel then
    redis.call(PUBLISH, channel, 'look ' .. first[1])
  end
end

-- Ends the hold: the lock passes on, under `propose` at least, is free, or stays reserved for a while.
local function finish(hold, is_unclean, propose)
  local since, min_hold, delay = string.match(hold or '', '^%+?%d+ %S+ (%d+) (%d+) (%d+)')
  local rest = since and math.floor(since / 1000) + min_hold - ms or 0
  if is_unclean and delay then
    rest = math.max(rest, tonumber(delay))
  end
  if rest > 0 then
    redis.call('SET', LOCK, '-', 'PX', string.format('%d', rest))
    wake_first()
  elseif not serve(hold, propose) then
    redis.call('DEL', LOCK)
  end
end
