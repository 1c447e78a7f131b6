-- What observers of an election read and are told. LOCK is KEYS[1], HOLD is KEYS[2].
-- 'leader TOKEN SINCE LEFT HOLDER': the exclusive holder, and the ms that are left of its lease.
-- 'foreign LEFT': the holder is a program of another library; LEFT is -1 if its key has no end.
-- 'nobody TOKEN': there is no exclusive holder; the last token, or 0.
local function sighting()
  local holder = redis.pcall('GET', KEYS[1])
  local hold = redis.call('GET', KEYS[2]) or ''
  if holder and holder ~= '*' and holder ~= '-' then
    local left = redis.call('PTTL', KEYS[1])
    local token, owner, since, delay, about = string.match(hold, '^%+?(%d+) (%S+) (%d+) %d+ (%d+) %S+ (.*)$')
    if owner ~= holder then
      return 'foreign ' .. left
    end
    left = math.max(left - delay, 0)
    -- A key that outlives the lease is a reservation.
    if left > 0 or delay == '0' then
      return 'leader ' .. token .. ' ' .. since .. ' ' .. left .. ' ' .. about
    end
  end
  return 'nobody ' .. (string.match(hold, '^%+?(%d+)') or '0')
end

-- Tells observers who leads now. KEYS[5] is ASKED. An error of the server is returned.
local function tell()
  return redis.pcall(PUBLISH, (string.gsub(KEYS[5], '}:asked', '}:leader', 1)), sighting())
end

-- Whether what is stored about a holder is that of a candidate: then it ends with the number of its value.
local function is_candidate(hold)
  return string.find(hold or '', '"number":%d+}$')
end
