-- Whether the hold with this record was detached: then several clients may count on it, each with a ttl of its own, and no
-- request makes its lease shorter.
local function is_detached(record)
  return string.find(record or '', '"detached":true}$')
end

-- The key of an exclusive hold lives for `live` ms from now on, and HOLD for `keep` ms. The lease of a hold that was not
-- detached may also become shorter: after the clock was set back the next renewal corrects it.
local function extend(lock, hold, live, keep)
  if redis.call('PTTL', lock) > tonumber(live) and is_detached(redis.call('GET', hold)) then
    return false
  end
  redis.call('PEXPIRE', lock, live)
  redis.call('PEXPIRE', hold, keep)
  return true
end

