-- All holds are there.
if value then
  redis.call('SET', KEYS[1], value)
else
  redis.call('DEL', KEYS[1])
end
return 1
