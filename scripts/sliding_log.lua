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
-- Needs    Redis >= 6.0 or Valkey, of 64 bits. Commands: TIME, ZRANGE, ZCARD, ZCOUNT, ZADD, ZREM,
--          ZREMRANGEBYRANK, PEXPIREAT, UNLINK.
--          No key but KEYS[1] is touched.
--
-- State    a sorted set. Its first member, at score 0, is "log:<window_ms>:<until>:<base>": the window of the last
--          change, the moment (ms) at which the key expires, and the running total up to which units are forgotten or
--          given back. Then one member for each charge, whatever its cost, with its time (us) as the score: the time
--          (14 digits), the running total with it (12 digits, so that equal times sort by total) and its own units,
--          all hexadecimal and without a gap: it is short, and a score is dear to read.

-- [shared: log_entry]
-- The time (us) and the running total of an entry; nil if the member is none. Running totals wrap around at 10^14, a
-- hundred times what can be in use, so a difference modulo 10^14 is never ambiguous.
local function log_entry(member)
  if #member < 27 then return nil end
  local time, total = tonumber(string.sub(member, 1, 14), 16), tonumber(string.sub(member, 15, 26), 16)
  if time then return time, total end
end
-- [end]

-- [main]
local operation, cost, limit, window_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- The usual call is told by its shape alone, which is cheap: few digits are within every range.
local usual = #ARGV == 4 and #KEYS == 1 and (operation == 'take' or operation == 'peek')
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
  if #KEYS ~= 1 then return must_be('KEYS', 'one key') end
  if not settles and operation ~= 'take' and operation ~= 'peek' then
    return must_be('operation', 'take, peek or settle')
  end
  if not settles then table.remove(names) end
  if #ARGV ~= #names + 1 then return must_be('ARGV', 'the operation, ' .. table.concat(names, ', ')) end
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
    local text = ARGV[i + 1]
    local number = #text < 18 and (text == '0' or string.find(text, '^%-?[1-9]%d*$')) and tonumber(text)
    if not number or number < least or number > most then
      return must_be(name, string.format('an integer from %d to %d', least, most))
    end
  end
  -- [end]
end
cost, limit, window_ms = cost + 0, limit + 0, window_ms + 0
local receipt = operation == 'settle' and ARGV[5] + 0 or 0
local key, clock = KEYS[1], redis.call('TIME')
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
local front = redis.pcall('ZRANGE', key, 0, 2)
local first = front[1]
if front.err then -- one that failed for another reason (no permission, say) keeps its own error
  return string.find(front.err, '^WRONGTYPE') and redis.error_reply(foreign) or front
end
if first then
  local w, u, b
  if #first < 60 then w, u, b = string.match(first, '^log:([1-9]%d*):(%d+):(%d+)$') end
  local last, total = log_entry(redis.call('ZRANGE', key, -1, -1)[1])
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
      if time and time <= cut then
        dead = redis.call('ZCOUNT', key, 1, string.format('%d', cut))
        local member = redis.call('ZRANGE', key, dead + 1, dead + 1)[1]
        if member then
          oldest = member
          time, oldest_total = log_entry(oldest)
        end
      end
    end
    local units = tonumber(string.sub(oldest, 27), 16)
    if not oldest_total or not units or time > last then return redis.error_reply(foreign) end
    if time > cut then
      local after = (total - oldest_total) % 100000000000000
      used = math.min(after + units, (total - b) % 100000000000000)
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

-- The oldest entry is tried first, then a guess by proportion, which is right where costs are alike, then growing
-- steps from there. `rank` is the entry's, and its time is `time`.
local rank, time = dead + 1, first_time
if passing and passing > first_passed then
  local low, high = rank, redis.call('ZCARD', key) - 1 -- not passed at low, passed at high
  local guess, step = low + math.ceil((high - low) * passing / used), 1
  time = newest
  while high - low > 1 do
    guess = math.max(low + 1, math.min(guess, high - 1))
    local moment, total = log_entry(redis.call('ZRANGE', key, guess, guess)[1])
    if not total then return redis.error_reply(foreign) end
    local passed = (total - base) % 100000000000000
    local found = passed >= passing and passed <= used -- before the base it wraps around, far above what is used
    if found then high, time = guess, moment else low = guess end
    local middle = math.floor((low + high) / 2)
    guess = found and math.max(high - step, middle) or math.min(low + step, middle)
    step = step * 2
  end
  rank = high
  if time < first_time or time > newest then return redis.error_reply(foreign) end
end
if allowed == 0 and passing then retry = time + window - now end

-- `clear`: what is there counts no more; `member`: an entry to be added, at `stamp`; `text`: the header as it is to
-- be; `moved`: the key's expiry (ms), where its own won't do.
local clear, stamp, member, text, moved
if charge > 0 or refund > 0 then
  clear = first and not header or refund == used and charge == 0
  if refund > 0 then dead = rank - 1 end
  base, used = base + refund, used - refund
  if charge > 0 then
    local total = base + used + charge
    -- Not within one microsecond, where the totals give the order: there is room for 1.8 * 10^14 more.
    if total >= 100000000000000 and at ~= newest then
      base, total = base - 100000000000000, total - 100000000000000
    end
    if total >= 280000000000000 then
      return redis.error_reply(foreign .. ' with room in this microsecond')
    end
    newest, used = at, used + charge
    stamp, member = string.format('%d', at), string.format('%014x%012x%x', at, total, charge)
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
if member then redis.call('ZADD', key, stamp, member) end
if text and text ~= header then
  redis.call('ZADD', key, 0, text)
  if header then redis.call('ZREM', key, header) end
end
if moved then redis.call('PEXPIREAT', key, moved) end
if dead > 0 and (member or text) then -- only so many that no call holds up the server
  redis.call('ZREMRANGEBYRANK', key, 1, math.min(dead, 100))
end
-- [end]
return {allowed, remaining, retry, reset, now}
