-- Sluice sliding log: exact. What was admitted in (now - window, now] counts, and nothing else does.
--
-- KEYS[1]  the state of one limit                   sluice:{<subject digest>}:<policy>
-- ARGV[1]  operation   take | peek | settle
-- ARGV[2]  cost        units. take, peek: 0 to 10^9. settle: actual - charged, -10^9 to 10^9
-- ARGV[3]  limit       units in any window, 1 to 10^9
-- ARGV[4]  window_ms   milliseconds, 1 to 31622400000 (366 days)
-- ARGV[5]  receipt     settle only: reply[5] of the take being settled, 0 = none
--          All are decimal integers in their shortest form: no leading zeros, no plus.
--
-- Reply    [1] allowed         1 or 0 (settle: always 1)
--          [2] remaining       whole units free after this call, never negative
--          [3] retry_after_ms  0 if allowed, else the least wait that admits this call; -1 if cost > limit
--          [4] reset_after_ms  the least wait until the whole limit is free, 0 if it is now
--          [5] server_time_us  TIME as read by this call, the receipt for settle
--
-- Errors   SLUICEARG <argument> must be <range>     nothing was read or written
--          SLUICESTATE KEYS[1] ...                  the key holds something else, nothing was written
-- Needs    Redis >= 6.0 or Valkey, of 64 bits. Commands: TIME, LRANGE, LINDEX, LLEN, RPUSH, LPUSH, LSET, LTRIM,
--          PEXPIREAT, UNLINK.
--          No key but KEYS[1] is touched.
--
-- State    a list. It begins with "log:<window_ms>:<until>:<base>": the window of the last change, the moment (ms) at
--          which the key expires, and the running total up to which units are forgotten or given back. Then one entry
--          for each charge, whatever its cost, the oldest first: its time (us, 14 digits), the running total with it
--          (12 digits) and its own units, all hexadecimal and without a gap.

-- [shared: log]
-- The time (us) and the running total of an entry; nil if it is none. Running totals wrap around at 10^14, a
-- hundred times what can be in use, so a difference modulo 10^14 is never ambiguous.
local function log_entry(entry)
  if #entry < 27 then return nil end
  local time, total = tonumber(string.sub(entry, 1, 14), 16), tonumber(string.sub(entry, 15, 26), 16)
  if time then return time, total end
end

-- The place of the first entry after `low` that is later than `cut`, and with which `units` have passed since the
-- running total was `base`, where `used` have passed with the newest; it is so at `high`, if at none before. And its
-- time, nil at `high`. Nothing if what is there is no entry. `guess` is tried first, then growing steps from there.
local function log_search(key, low, high, guess, cut, base, units, used)
  local time, step = nil, 1
  while high - low > 1 do
    guess = math.max(low + 1, math.min(guess, high - 1))
    local moment, total = log_entry(redis.call('LINDEX', key, guess))
    if not total then return nil end
    local passed = (total - base) % 100000000000000
    local found = moment > cut and passed >= units and passed <= used -- before the base it wraps around
    if found then high, time = guess, moment else low = guess end
    local middle = math.floor((low + high) / 2)
    guess = found and math.max(high - step, middle) or math.min(low + step, middle)
    step = step * 2
  end
  return high, time
end
-- [end]

-- [main]
local keys, args = KEYS, ARGV -- globals are dearer
local operation, cost, limit, window_ms = args[1], args[2], args[3], args[4]
-- The usual call is told by its shape alone, which is cheap: few digits are within every range.
local usual = #args == 4 and #keys == 1 and (operation == 'take' or operation == 'peek')
  and #cost < 10 and #limit < 10 and #window_ms < 11
  and cost >= '1' and limit >= '1' and window_ms >= '1'
  and string.find(cost .. limit .. window_ms, '^%d+$')
if not usual then
  local names = {'cost', 'limit', 'window_ms', 'receipt'}
  -- [shared: refusal]
  -- The error for the first argument that is not as it must be. `names`: from ARGV[2] on, the receipt last.
  local function must_be(argument, what)
    return redis.error_reply('SLUICEARG ' .. argument .. ' must be ' .. what)
  end
  local settles = operation == 'settle'
  if #keys ~= 1 then return must_be('KEYS', 'one key') end
  if not settles and operation ~= 'take' and operation ~= 'peek' then
    return must_be('operation', 'take, peek or settle')
  end
  if not settles then table.remove(names) end
  if #args ~= #names + 1 then return must_be('ARGV', 'the operation, ' .. table.concat(names, ', ')) end
  for i, name in ipairs(names) do
    local least, most = 1, 1000000000
    if name == 'cost' then
      least = settles and -most or 0
    elseif name == 'receipt' then
      least, most = 0, 9007199254740991 -- 2^53 - 1
    elseif name == 'window_ms' or name == 'period_ms' then
      most = 31622400000 -- 366 days
    end
    -- tonumber alone would take 1e3, 0x10, ' 5' and nan.
    local text = args[i + 1]
    local number = #text < 18 and (text == '0' or string.find(text, '^%-?[1-9]%d*$')) and tonumber(text)
    if not number or number < least or number > most then
      return must_be(name, string.format('an integer from %d to %d', least, most))
    end
  end
  -- [end]
end
cost, limit, window_ms = cost + 0, limit + 0, window_ms + 0
local receipt = operation == 'settle' and args[5] + 0 or 0
local key, clock = keys[1], redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- [algorithm: sliding_log]
-- Decides one call at the server time `now` (us): the numbers of its reply, and what the state is to be.
local window = window_ms * 1000
local now_ms = (now - now % 1000) / 1000

local at, expiry = now, nil -- expiry: of a log in which entries count
local base, used = 0, 0 -- the running total before the units that count, and those
local newest -- the time of the newest entry
local first_time, first_passed -- of the oldest entry that counts, and the units that pass with it
local dead = 0 -- entries at the front that count no more
local header, header_window
local foreign = 'SLUICESTATE KEYS[1] holds something that is not a sliding log'
local front = redis.pcall('LRANGE', key, 0, 2)
local first = front[1]
if front.err then -- one that failed for another reason (no permission, say) keeps its own error
  return string.find(front.err, '^WRONGTYPE') and redis.error_reply(foreign) or front
end
if first then
  local w, u, b
  if #first < 60 then w, u, b = string.match(first, '^log:([1-9]%d*):(%d+):(%d+)$') end
  local last, total = log_entry(redis.call('LINDEX', key, -1))
  local oldest = front[2] or ''
  local time, oldest_total = log_entry(oldest)
  if not w or not total or not oldest_total then return redis.error_reply(foreign) end
  -- A log from the future stands still for up to one window, and is discarded beyond.
  if now_ms < u + 0 and last - now <= window then
    if last > at then at = last end
    -- The last change forgot what was outside its own window, so a longer one now does not bring it back.
    local cut = math.max(at - window, last - w * 1000)
    if time <= cut and front[3] then
      dead, oldest = 1, front[3]
      time, oldest_total = log_entry(oldest)
      if time and time <= cut and last > cut then
        local place = log_search(key, 2, redis.call('LLEN', key) - 1, 3, cut, 0, 0, 100000000000000)
        if not place then return redis.error_reply(foreign) end
        dead, oldest = place - 1, redis.call('LINDEX', key, place)
        time, oldest_total = log_entry(oldest)
      end
    end
    local units = tonumber(string.sub(oldest, 27), 16)
    if not oldest_total or not units or time > last then return redis.error_reply(foreign) end
    if time > cut then
      local after = (total - oldest_total) % 100000000000000
      used = math.min(after + units, (total - b) % 100000000000000)
      -- With the newest entry its units count. One that says otherwise, or a base of more digits, is none of ours.
      if used < 1 or #b > 14 then return redis.error_reply(foreign) end
      base, newest, first_time, first_passed = total - used, last, time, used - after
      header, header_window, expiry = first, w + 0, u + 0
    end
  end
end

local allowed, retry, charge, refund = 1, 0, 0, 0 -- retry: in us
local passing -- units: with which entry do so many pass?
if operation == 'settle' then
  if cost > 0 then
    charge = math.min(cost, 1000000000000 - used) -- debts end here, a thousand times the largest limit
  elseif receipt == 0 or (receipt > now - window and receipt <= now + window) then
    refund = math.min(-cost, used)
    if refund > 0 and refund < used then passing = refund + 1 end
  end
elseif cost == 0 or used + cost <= limit then
  if operation == 'take' then charge = cost end
else
  allowed, retry = 0, -1
  if cost <= limit then passing = used + cost - limit end
end

-- The oldest entry is tried first, then a guess by proportion, which is right where costs are alike. `place` is the
-- entry's, and its time is `time`.
local place, time = dead + 1, first_time
if passing and passing > first_passed then
  local high = redis.call('LLEN', key) - 1
  local guess = place + math.ceil((high - place) * passing / used)
  place, time = log_search(key, place, high, guess, 0, base, passing, used)
  time = time or newest
  if not place or time < first_time or time > newest then return redis.error_reply(foreign) end
end
if allowed == 0 and passing then retry = time + window - now end

-- `clear`: what is there counts no more; `entry`: one to be added; `text`: the header as it is to be; `moved`: the
-- key's expiry (ms), where its own won't do.
local clear, entry, text, moved
if charge > 0 or refund > 0 then
  clear = first and not header or refund == used and charge == 0
  if refund > 0 then dead = place - 1 end
  base, used = base + refund, used - refund
  if charge > 0 then
    newest, used = at, used + charge
    entry = string.format('%014x%012x%x', at, (base + used) % 100000000000000, charge)
  end
  if used > 0 then
    local need = newest + window + 999
    need = (need - need % 1000) / 1000
    local most = now_ms + 2 * window_ms
    if not expiry or expiry < need or expiry > most then
      expiry = math.max(need, most)
      moved = string.format('%d', expiry)
    end
    if moved or refund > 0 or header_window ~= window_ms then
      text = string.format('log:%d:%d:%d', window_ms, expiry, base % 100000000000000)
    end
  end
end
local reset = 0
if used > 0 then
  -- No wait is longer than the state is known.
  local known = expiry * 1000 - now
  reset = newest + window - now
  reset = (reset < known and reset or known) + 999
  reset = (reset - reset % 1000) / 1000
  if retry > 0 then
    retry = (retry < known and retry or known) + 999
    retry = (retry - retry % 1000) / 1000
  end
end
local remaining = used < limit and limit - used or 0
-- [end]

-- [shared: log_store]
if clear then
  redis.call('UNLINK', key)
  dead = 0
end
if entry and not header then
  redis.call('RPUSH', key, text, entry)
elseif entry then
  redis.call('RPUSH', key, entry)
end
if dead > 0 and (entry or text) then -- only so many that no call holds up the server
  redis.call('LTRIM', key, math.min(dead, 100) + 1, -1)
  redis.call('LPUSH', key, text or header)
elseif header and text and text ~= header then
  redis.call('LSET', key, 0, text)
end
if moved then redis.call('PEXPIREAT', key, moved) end
-- [end]
return {allowed, remaining, retry, reset, now}
