-- @common
-- ARGV: OWNER [ENDED]. ENDED is as in the other formats. 1: the permit was ours, and is free or reserved. 0: it was not.
return end_hold(ARGV[1], ARGV[2] ~= '-' and ARGV[2])
