-- @common
-- ARGV: OWNER [ENDED]. ENDED is as in the other format. 1: the lock was ours, and is free or reserved. 0: it was not.
if not is_ours(ARGV[1]) then
  return 0
end
finish(ARGV[2] ~= '-' and ARGV[2])
return 1
