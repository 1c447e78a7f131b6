-- KEYS: DATA, LOCK, HOLDERS, LOCK, HOLDERS.. ARGV: OWNER, OWNER.. [VALUE]. 1: written, or deleted without VALUE. 0: not
-- ours.
local clock = redis.call('TIME')
local ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local count = (#KEYS - 1) / 2
for i = 1, count do
  local lock = KEYS[2 * i]
  local deadlines = (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}') .. ':timeout'
  local id = string.gsub(ARGV[i], '%x%x', function(byte) return string.char(tonumber(byte, 16)) end)
  if tonumber(redis.call('ZSCORE', deadlines, id) or 0) <= ms then
    return 0
  end
end
local value = ARGV[count + 1]
-- @write_value
