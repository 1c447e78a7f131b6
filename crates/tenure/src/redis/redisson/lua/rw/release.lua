-- @common
-- ARGV: OWNER. 1: the lock was ours, and the hold has ended. 0: it was not.
return end_hold(ARGV[1])
