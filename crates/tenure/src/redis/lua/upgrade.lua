-- @common
-- ARGV: OWNER LIVE KEEP WAIT [PROPOSE]. LIVE is TTL + DELAY, and what is left of MIN_HOLD at least. A token: exclusive from now on. {0, ms until the first lease ends
-- of all holders, the owner included, 0, 0, last token}: others hold; with WAIT 1 the hold becomes exclusive when they have
-- left. {-2}: the owner has no upgradable hold.
local owner, live = ARGV[1], tonumber(ARGV[2])
local holder = redis.pcall('GET', LOCK)
if holder == owner then
  if redis.call('PTTL', LOCK) < live then
    redis.call('PEXPIRE', LOCK, ARGV[2])
    redis.call('PEXPIRE', HOLD, ARGV[3])
  end
  return parse_hold(redis.call('GET', HOLD))
end
local all = holder == '*' and read_holders()
local entry = all and entry_of(all, owner)
if not entry or entry.mode ~= 'u' and entry.mode ~= 'w' then
  return {-2}
end
entry.deadline = math.max(entry.deadline, ms + live)
if all.count == 1 then
  return tonumber(become_exclusive(owner, entry, keep_for(entry.deadline - ms), ARGV[5] and tonumber(ARGV[5])))
end
entry.mode = ARGV[4] == '1' and 'w' or 'u'
all.upgrading = entry.mode == 'w' and owner
write_holder(all, owner, entry)
local token, mark = parse_hold(redis.call('GET', HOLD))
if entry.mode == 'u' then
  serve_shared(all)
elseif mark == '' then
  -- Requests read the holders from now on.
  redis.call('SET', HOLD, '+' .. redis.call('GET', HOLD), 'KEEPTTL')
end
return {0, all.left - ms, 0, 0, token}
