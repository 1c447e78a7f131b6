-- Does what the script of a lock does. Then observers are told who leads, if that has changed, or if a grant may not have
-- been told. KEYS[5] is ASKED, which has the owner whose holder is asked to let go.
-- @sighting
local function state()
  local holder = redis.pcall('GET', KEYS[1])
  local token = string.match(redis.call('GET', KEYS[2]) or '', '%d+')
  return type(holder) == 'string' and holder or '', token
end

local holder, token = state()
local function as_lock()
-- @lock
end
local answer = as_lock()
local next_holder, next_token = state()
local is_new = next_holder ~= holder
if is_new then
  redis.call('DEL', KEYS[5])
end
if is_new or next_token ~= token or type(answer) == 'number' and answer > 0 then
  local told = tell()
  if type(told) == 'table' and is_new and next_holder == ARGV[1] then
    -- A leader that may not tell observers is not elected.
    redis.call('DEL', KEYS[1])
    return told
  end
end
return answer
