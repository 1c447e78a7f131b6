-- KEYS: LOCK, HOLD, LOCK, HOLD.. ARGV: TTL SELF KEEP, and for each lock OWNER PROPOSE (0: nothing).
-- For each lock its token. 0: it is not free, or somebody waits for it, and nothing was done.
local ttl, keep = ARGV[1], ARGV[3]
local clock = redis.call('TIME')
local since = clock[1] * 1000000 + clock[2]
local about = string.format(' %d ', since) .. ARGV[2]
local answers = {}
for i = 1, #KEYS / 2 do
  local hold, owner = KEYS[2 * i], ARGV[2 * i + 2]
  local known = redis.pcall('GET', hold)
  local is_plain = not known or type(known) == 'string' and string.byte(known) ~= 43
  if is_plain and redis.call('SET', KEYS[2 * i - 1], owner, 'PX', ttl, 'NX') then
    local token = tonumber(ARGV[2 * i + 3])
    if token == 0 then
      token = since
    end
    local last = known and tonumber(string.match(known, '^%d+')) or 0
    if last >= token then
      token = last + 1
    end
    redis.call('SET', hold, string.format('%d ', token) .. owner .. about, 'PX', keep)
    answers[i] = token
  else
    answers[i] = 0
  end
end
return answers
