-- What the scripts about one lock share. Times are the server's.
local LOCK, HOLD, QUEUE, HOLDERS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
local ms = math.floor(us / 1000)
-- A token outlives its hold by a day, in ms.
local KEEP = '86400000'
-- The bytes of modes.
local SHARED, PERMIT, UPGRADING = 115, 112, 119

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
  return {texts = {}, entries = {}, over = {}, count = 0, permits = 0, upgradable = false, upgrading = false, last = 0, left = false}
end

-- The shared holders: their `texts` by field, and how many there are of each kind; `over` has the fields of holds
-- whose lease is over. Only `settle` removes those: HOLDERS and LOCK always end together. `entry_of` reads a text, which
-- costs more than to count the holders.
local function read_holders()
  local all = no_holders()
  local fields = redis.call('HGETALL', HOLDERS)
  for i = 1, #fields, 2 do
    local field, text = fields[i], fields[i + 1]
    -- A deadline has 13 digits from 2001 until 2286.
    local deadline, mode = tonumber(string.sub(text, 1, 13)), string.byte(text, 15)
    if string.byte(text, 14) ~= 32 then
      deadline, mode = string.match(text, '^(%d+) (%a)')
      deadline, mode = tonumber(deadline), string.byte(mode)
    end
    if deadline <= ms then
      all.over[#all.over + 1] = field
    else
      all.texts[field] = text
      all.count = all.count + 1
      if deadline > all.last then
        all.last = deadline
      end
      if not all.left or deadline < all.left then
        all.left = deadline
      end
      if mode == PERMIT then
        all.permits = all.permits + 1
      elseif mode ~= SHARED then
        all.upgradable = true
        all.upgrading = all.upgrading or mode == UPGRADING and field
      end
    end
  end
  return all
end

-- When the first and the last of the permits end, if `limit` permits are held and nothing else. Nil: the holders have to be
-- read one by one.
local function ends_of_permits(limit)
  local fields, now = redis.call('HGETALL', HOLDERS), string.format('%d', ms)
  local first, last
  for i = 2, #fields, 2 do
    local text = fields[i]
    -- 13 digits from 2001 until 2286, which have the order of their numbers.
    local deadline = string.sub(text, 1, 13)
    if string.byte(text, 14) ~= 32 or string.byte(text, 15) ~= PERMIT or deadline <= now then
      return nil
    end
    if not first or deadline < first then
      first = deadline
    end
    if not last or deadline > last then
      last = deadline
    end
  end
  if #fields == 2 * limit then
    return first, last
  end
end

-- What HOLDERS has in a field; nil: there is no such hold.
local function entry_of(all, field)
  local text = all.texts[field]
  if text and not all.entries[field] then
    local deadline, mode, limit, token, since, self =
      string.match(text, '^(%d+) (%a)(%d*) (%d+) (%d+) (.*)$')
    all.entries[field] =
      {deadline = tonumber(deadline), mode = mode, limit = limit, token = token, since = since, self = self}
  end
  return all.entries[field]
end

-- Whether a shared hold of that mode may begin while these last.
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

-- Writes a holder into HOLDERS. LOCK lasts as long as the longest of them, and is '*' already unless `all` has none.
local function write_holder(all, field, entry)
  local text = string.format('%d %s%s %s %s ', entry.deadline, entry.mode, entry.limit, entry.token, entry.since)
    .. entry.self
  redis.call('HSET', HOLDERS, field, text)
  all.texts[field], all.entries[field] = text, entry
  if entry.deadline > all.last then
    local last = string.format('%d', entry.deadline)
    if all.last == 0 then
      redis.call('SET', LOCK, '*')
    end
    redis.call('PEXPIREAT', LOCK, last)
    redis.call('PEXPIREAT', HOLDERS, last)
    all.last = entry.deadline
  end
end

-- The last token, and whether the queue may have waiters, of a hold text.
local function parse_hold(hold)
  local mark, token = string.match(hold or '', '^(%+?)(%d+)')
  return tonumber(token or 0), mark or ''
end

-- Grants a shared hold, under `propose` at least. There may be other holders or none. Returns the token.
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
  -- LOCK may last for another holder.
  keep = string.format('%d', math.max(keep, 2 * (all.last - ms)))
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
