-- KEYS: LOCK, HOLD, HOLDERS, and again.. ARGV: OWNER, ms to live (0: change nothing), ms to keep the token, and again..
-- For each lock 1: still ours, in any mode. 0: not ours. -1: held by another writer.
local answers = {}
for i = 1, #KEYS / 3 do
  local lock, hold, holders = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local owner, live, keep = ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), ARGV[3 * i]
  local name = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
  local entry = name .. ':' .. owner .. ':rwlock_timeout:1'
  local writes = redis.pcall('HEXISTS', lock, owner .. ':write') == 1
  if writes or redis.pcall('HEXISTS', lock, owner) == 1 and redis.call('EXISTS', entry) == 1 then
    answers[i] = 1
    if live > 0 then
      if not writes then
        redis.call('PEXPIRE', entry, live)
      end
      for _, key in ipairs({lock, holders}) do
        if redis.call('PTTL', key) < live then
          redis.call('PEXPIRE', key, live)
        end
      end
      redis.call('PEXPIRE', hold, keep)
    end
  else
    answers[i] = redis.pcall('HGET', lock, 'mode') == 'write' and -1 or 0
  end
end
return answers
