-- ARGV: OWNER [ENDED [NEXT]]. ENDED: whether the hold ended before this release, if MIN_HOLD or DELAY is set or the
-- client does not know; else '-'. NEXT: the least token of the next grant.
-- 1: the lock was ours. 0: it was not; if we had a place in the queue, that place was removed.

-- Nearly always the queue is empty: that case takes as few commands as possible.
local ended = ARGV[2] ~= '-' and ARGV[2]
local held = redis.call('MGET', KEYS[1], KEYS[2])
if not ended and held[2] and string.byte(held[2]) ~= 43 then
  if held[1] == ARGV[1] then
    return redis.call('DEL', KEYS[1])
  end
  local entry = held[1] == '*' and redis.call('HGET', KEYS[4], ARGV[1])
  if entry then
    local clock = redis.call('TIME')
    if tonumber(string.match(entry, '^%d+')) > clock[1] * 1000 + math.floor(clock[2] / 1000) then
      redis.call('HDEL', KEYS[4], ARGV[1])
      if redis.call('EXISTS', KEYS[4]) == 0 then
        redis.call('DEL', KEYS[1])
      end
      return 1
    end
  end
end
-- @common
if held[1] == '*' and not ended and not ARGV[3] and pass_permit(ARGV[1], held[2]) then
  return 1
end
local next_token = ARGV[3] and tonumber(ARGV[3])
if held[1] == '*' then
  local entry = redis.call('HGET', HOLDERS, ARGV[1])
  if entry then
    if tonumber(string.match(entry, '^%d+')) <= ms then
      settle()
      return 0
    end
    local deadline = end_holder(ARGV[1], entry, ended)
    if not settle(next_token, deadline) and redis.call('EXISTS', LOCK) == 0 then
      serve(redis.call('GET', HOLD), next_token)
    end
    return 1
  end
end
-- A server whose memory is full refuses a script whose first write needs memory. This write needs none, and changes nothing.
local life = redis.call('PTTL', QUEUE)
if life > 0 then
  redis.call('PEXPIRE', QUEUE, life)
end
if held[1] ~= ARGV[1] then
  local at = redis.call('LPOS', QUEUE, ARGV[1])
  if at then
    -- Both elements of the entry become equal, so that one command removes both.
    redis.call('LSET', QUEUE, at + 1, ARGV[1])
    redis.call('LREM', QUEUE, 2, ARGV[1])
    if held[1] == '*' then
      settle()
    elseif at == 0 and held[1] then
      -- The next waiter is the first now, and has to notice that the lease of the holder has ended.
      wake_first()
    elseif at == 0 then
      serve(held[2], next_token)
    end
  end
  return 0
end
if ended then
  finish(held[2], ended == '1', next_token)
elseif not serve(held[2], next_token) then
  redis.call('DEL', LOCK)
end
return 1
