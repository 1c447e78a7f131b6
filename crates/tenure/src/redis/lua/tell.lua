-- @sighting
-- Tells observers who leads now: the script of a lock, which tells no observer, has handed the lock over to a candidate.
-- How many of them this server has, or an error.
return tell()
