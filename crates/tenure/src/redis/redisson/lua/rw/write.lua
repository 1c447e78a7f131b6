-- KEYS: DATA, LOCK, HOLDERS, LOCK, HOLDERS.. ARGV: OWNER, OWNER.. [VALUE]. 1: written, or deleted without VALUE. 0: not
-- ours.
local count = (#KEYS - 1) / 2
for i = 1, count do
  local lock, owner = KEYS[2 * i], ARGV[i]
  local name = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
  local reads = redis.pcall('HEXISTS', lock, owner) == 1
    and redis.call('EXISTS', name .. ':' .. owner .. ':rwlock_timeout:1') == 1
  if not reads and redis.pcall('HEXISTS', lock, owner .. ':write') ~= 1 then
    return 0
  end
end
local value = ARGV[count + 1]
-- @write_value
