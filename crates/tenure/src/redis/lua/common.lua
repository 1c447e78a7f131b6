-- What the scripts about one lock share. Times are the server's.
local LOCK, HOLD, QUEUE, HOLDERS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
local ms = math.floor(us / 1000)
-- A token outlives its hold by a day, in ms.
local KEEP = '86400000'

-- How long a token is kept whose hold lives for `live` ms: HOLD must not end before LOCK.
local function keep_for(live)
  return string.format('%d', math.max(tonumber(KEEP), 2 * live))
end

-- SELF is what others need to know of an owner: MIN_HOLD DELAY CHANNEL HOLDER. A hold lives until its lease and DELAY are
-- over, and for MIN_HOLD from its grant on at least.
-- QUEUE is a list that has two elements of each waiter, in order: OWNER, and DEADLINE SELF, or DEADLINE MODE SELF of a
-- waiter that does not want the lock for itself alone. MODE is s: shared, u: upgradable, p and a number: one of so many
-- permits.
-- While others hold than one exclusive holder, LOCK is '*', and HOLDERS is a hash: OWNER to 'DEADLINE MODE TOKEN SINCE
-- SELF'. There MODE may also be w: upgradable, and waits to become exclusive. The field of a hold that has ended, and
-- reserves its place for a while, is '-' and OWNER.

-- Grants the lock to `owner`, under a token that is greater than every earlier one, also when the server has
-- forgotten those. The caller knows that the lock is free, and what is in `hold`. The mark is '+' unless the queue is
-- empty, so that a release without waiters need not read the queue.
local function grant(owner, live, keep, self, hold, mark, propose)
  local last = tonumber(string.match(hold or '', '%d+') or 0)
  local token = string.format('%d', math.max(last + 1, propose or us))
  redis.call('SET', LOCK, owner, 'PX', live)
  redis.call('SET', HOLD, string.format('%s%s %s %d ', mark, token, owner, us) .. self, 'PX', keep)
  return token
end

local function no_holders()
  return {entries = {}, over = {}, count = 0, permits = 0, upgradable = false, upgrading = false, last = 0, left = false}
end

-- The shared holders: `entries` by field, and how many there are of each kind; `over` has the fields of holds
-- whose lease is over. Only `settle` removes those: HOLDERS and LOCK always end together.
local function read_holders()
  local all = no_holders()
  local fields = redis.call('HGETALL', HOLDERS)
  for i = 1, #fields, 2 do
    local deadline, mode, limit, token, since, self =
      string.match(fields[i + 1], '^(%d+) (%a)(%d*) (%d+) (%d+) (.*)$')
    deadline = tonumber(deadline)
    if deadline <= ms then
      all.over[#all.over + 1] = fields[i]
    else
      all.entries[fields[i]] = {deadline = deadline, mode = mode, limit = limit, token = token, since = since, self = self}
      all.count = all.count + 1
      all.last = math.max(all.last, deadline)
      all.left = math.min(all.left or deadline, deadline)
      if mode == 'p' then
        all.permits = all.permits + 1
      elseif mode == 'u' or mode == 'w' then
        all.upgradable = true
        all.upgrading = all.upgrading or mode == 'w' and fields[i]
      end
    end
  end
  return all
end

-- Whether a hold of that mode may begin beside these.
local function has_room(all, mode, limit)
  if all.upgrading then
    return false
  elseif mode == 'u' then
    return not all.upgradable
  elseif mode == 'p' then
    return all.permits < tonumber(limit)
  end
  return true
end

-- Writes a holder into HOLDERS. LOCK lasts as long as the longest of them.
local function write_holder(all, field, entry)
  redis.call('HSET', HOLDERS, field, string.format('%d %s%s %s %s ', entry.deadline, entry.mode, entry.limit, entry.token,
    entry.since) .. entry.self)
  all.entries[field] = entry
  all.last = math.max(all.last, entry.deadline)
  redis.call('SET', LOCK, '*')
  redis.call('PEXPIREAT', LOCK, string.format('%d', all.last))
  redis.call('PEXPIREAT', HOLDERS, string.format('%d', all.last))
end

-- The last token, and whether the queue may have waiters, of a hold text.
local function parse_hold(hold)
  local mark, token = string.match(hold or '', '^(%+?)(%d+)')
  return tonumber(token or 0), mark or ''
end

-- Grants a place beside the holders, of which there may be none, under `propose` at least. Returns the token.
local function join(all, owner, mode, limit, live, self, keep, mark, propose)
  local last = parse_hold(redis.call('GET', HOLD))
  local token = string.format('%d', math.max(last + 1, propose or us))
  local since = string.format('%d', us)
  write_holder(all, owner, {deadline = ms + live, mode = mode, limit = limit, token = token, since = since, self = self})
  all.count = all.count + 1
  if mode == 'p' then
    all.permits = all.permits + 1
  elseif mode == 'u' then
    all.upgradable = true
  end
  redis.call('SET', HOLD, mark .. token .. ' * ' .. since .. ' 0 0 -', 'PX', keep)
  return token
end

-- Makes the only holder exclusive, under `propose` at least. Returns the token.
local function become_exclusive(owner, entry, keep, propose)
  local last, mark = parse_hold(redis.call('GET', HOLD))
  local token = string.format('%d', math.max(last + 1, propose or us))
  redis.call('DEL', HOLDERS)
  redis.call('SET', LOCK, owner)
  redis.call('PEXPIREAT', LOCK, string.format('%d', entry.deadline))
  redis.call('SET', HOLD, mark .. token .. ' ' .. owner .. ' ' .. entry.since .. ' ' .. entry.self, 'PX', keep)
  return token
end

-- Grants places beside the holders to the first waiters in the queue, while they have room, under `propose` at least.
local function serve_shared(all, propose)
  local upgrading = all.upgrading
  if upgrading then
    if all.count == 1 then
      local entry = all.entries[upgrading]
      local token = become_exclusive(upgrading, entry, keep_for(entry.deadline - ms), propose)
      redis.call(PUBLISH, string.match(entry.self, '^%d+ %d+ (%S+)'), 'granted ' .. upgrading .. ' ' .. token)
    end
    return
  end
  while true do
    local first = redis.call('LRANGE', QUEUE, 0, 1)
    if not first[1] then
      return
    end
    local deadline, mode, limit, self, min_hold, delay, channel =
      string.match(first[2] or '', '^(%d+) (%a)(%d*) ((%d+) (%d+) (%S+) .*)$')
    local until_ms = tonumber(deadline or string.match(first[2] or '', '^%d+') or 0)
    local is_good = until_ms > ms
    if is_good and (not mode or not has_room(all, mode, limit)) then
      return
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

-- Ends a place beside the holders. Its part of the lock stays reserved for a while, if the hold says so and `ended` is not
-- false; it is '1' if the hold ended before.
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
end

-- Takes a place in the queue, or keeps it. Returns how many waiters are ahead.
local function enqueue(owner, entry, is_first, keep)
  local at = is_first == '0' and redis.call('LPOS', QUEUE, owner)
  if at then
    redis.call('LSET', QUEUE, at + 1, entry)
  else
    at = redis.call('RPUSH', QUEUE, owner, entry) - 2
  end
  -- Longer than any place is good for, so that a queue without waiters expires.
  redis.call('PEXPIRE', QUEUE, 15000)
  local hold = redis.call('GET', HOLD)
  if not hold then
    redis.call('SET', HOLD, '+0 - 0 0 0 -', 'PX', keep)
  elseif string.byte(hold) ~= 43 then
    redis.call('SET', HOLD, '+' .. hold, 'KEEPTTL')
  end
  return at / 2
end

-- Does what is due while LOCK is '*': removes holds whose lease is over, and serves the queue. Returns the holders; nil:
-- LOCK is not '*' any more. Waiters are granted places under `propose` at least.
local function settle(propose)
  local all = read_holders()
  if all.count == 0 then
    redis.call('DEL', LOCK)
    redis.call('DEL', HOLDERS)
    return nil
  end
  for _, field in ipairs(all.over) do
    redis.call('HDEL', HOLDERS, field)
  end
  -- The longest of them may have left.
  redis.call('PEXPIREAT', LOCK, string.format('%d', all.last))
  redis.call('PEXPIREAT', HOLDERS, string.format('%d', all.last))
  serve_shared(all, propose)
  return redis.call('GET', LOCK) == '*' and all or nil
end

-- Removes the first waiter from the queue. After the grant is written: if the user may not write the grant, the waiter stays.
local function pop()
  redis.call('LPOP', QUEUE)
  redis.call('LPOP', QUEUE)
end

-- Grants the free lock to the first waiter whose place is still good, with the lease that is left of that place, under
-- `propose` at least. Others come in beside a holder that is not exclusive. False: no waiter is left.
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

-- Ends the hold: the lock passes on, under `propose` at least, is free, or stays reserved for a while.
local function finish(hold, is_unclean, propose)
  local since, min_hold, delay = string.match(hold or '', '^%+?%d+ %S+ (%d+) (%d+) (%d+)')
  local rest = since and math.floor(since / 1000) + min_hold - ms or 0
  if is_unclean and delay then
    rest = math.max(rest, tonumber(delay))
  end
  if rest > 0 then
    redis.call('SET', LOCK, '-', 'PX', string.format('%d', rest))
    -- The first waiter asks again, and learns until when.
    local first = redis.call('LRANGE', QUEUE, 0, 1)
    local channel = string.match(first[2] or '', '^%d+ %a?%d* ?%d+ %d+ (%S+)')
    if channel then
      redis.call(PUBLISH, channel, 'look ' .. first[1])
    end
  elseif not serve(hold, propose) then
    redis.call('DEL', LOCK)
  end
end
