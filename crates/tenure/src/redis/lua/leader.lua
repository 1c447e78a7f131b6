-- @sighting
-- KEYS: LOCK, HOLD. Reads who leads, and changes nothing.
return sighting()
