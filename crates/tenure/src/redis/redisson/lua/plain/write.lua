-- KEYS: DATA, LOCK, LOCK.. ARGV: OWNER, OWNER.. [VALUE]. 1: written, or deleted without VALUE. 0: not ours.
for i = 2, #KEYS do
  if redis.pcall('HEXISTS', KEYS[i], ARGV[i - 1]) ~= 1 then
    return 0
  end
end
local value = ARGV[#KEYS]
-- @write_value
