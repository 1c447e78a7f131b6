-- KEYS: DATA, LOCK, HOLDERS, and again.. ARGV: OWNER, OWNER.. [VALUE]. As write.lua, for holds in any mode.
local clock = redis.call('TIME')
local ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local count = (#KEYS - 1) / 2
for i = 1, count do
  local holder = redis.pcall('GET', KEYS[2 * i])
  if holder ~= ARGV[i] then
    local entry = holder == '*' and redis.call('HGET', KEYS[2 * i + 1], ARGV[i])
    if tonumber(string.match(entry or '', '^(%d+) ') or 0) <= ms then
      return 0
    end
  end
end
local value = ARGV[count + 1]
-- @write_value
