-- Sluice sliding log: exact. What was admitted in (now - window, now] counts, and nothing else does.
--
-- KEYS[1]  the state of one limit                   sluice:{<subject digest>}:<policy>
-- ARGV[1]  operation   take | peek | settle
-- ARGV[2]  cost        units. take, peek: 0 to 10^9. settle: actual - charged, -10^9 to 10^9
-- ARGV[3]  limit       units in any window, 1 to 10^9
-- ARGV[4]  window_ms   milliseconds, 1 to 31622400000 (366 days)
-- ARGV[5]  receipt     settle only: reply[5] of the take being settled, 0 = none
--
-- Reply    [1] allowed         1 or 0 (settle: always 1)
--          [2] remaining       whole units free after this call, never negative
--          [3] retry_after_ms  0 if allowed, else the least wait that admits this call; -1 if cost > limit
--          [4] reset_after_ms  the least wait until the whole limit is free, 0 if it is now
--          [5] server_time_us  TIME as read by this call, the receipt for settle
--
-- Errors   SLUICEARG <argument> must be <range>     nothing was read or written
--          SLUICESTATE KEYS[1] ...                  the key holds something else, nothing was written
-- Needs    Redis >= 6.0 or Valkey. Commands: TIME, ZRANGE, ZCARD, ZCOUNT, ZADD, ZREM,
--          ZREMRANGEBYRANK, PEXPIREAT, UNLINK.
--          No key but KEYS[1] is touched.
--
-- State    a sorted set. Its first member, at score 0, is "log:<window_ms>:<until>:<base>": the window of the last
--          change, the moment (ms) at which the key expires, and the running total up to which units are forgotten or
--          given back. Then one member for each charge, whatever its cost, with its time (us) as the score: the time
--          (14 digits), the running total with it (13 digits, so that equal times sort by total) and its own units,
--          all hexadecimal and without a gap: it is short, and a score is dear to read.

-- [shared: refuse]
-- The error that names an argument and its range.
local function refuse(argument)
  local ranges = {
    KEYS = 'one key',
    ARGV = 'an operation, a cost, the policy, and for settle a receipt',
    operation = 'take, peek or settle',
    cost = 'an integer from 0 to 1000000000 (settle: from -1000000000)',
    limit = 'an integer from 1 to 1000000000',
    window_ms = 'an integer from 1 to 31622400000',
    capacity = 'an integer from 1 to 1000000000',
    refill = 'an integer from 1 to 1000000000',
    period_ms = 'an integer from 1 to 31622400000, and the bucket full again within 31622400000 ms',
    receipt = 'an integer from 0 to 9007199254740991',
  }
  return redis.error_reply('SLUICEARG ' .. argument .. ' must be ' .. ranges[argument])
end

-- Which of the named arguments, from ARGV[2] on, is not made of digits.
local function malformed(names)
  for i, name in ipairs(names) do
    local digits = name == 'cost' and ARGV[1] == 'settle' and '^%-?%d+$' or '^%d+$'
    if not string.find(ARGV[i + 1], digits) then return name end
  end
end
-- [end]

-- [shared: foreign]
-- The error for a key that holds something else. A read that failed for another reason (no permission, say) keeps its
-- own error.
local function foreign(state, kind)
  if type(state) == 'table' and state.err and not string.find(state.err, '^WRONGTYPE') then return state end
  return redis.error_reply('SLUICESTATE KEYS[1] holds something that is not a ' .. kind)
end
-- [end]

-- [shared: wait]
-- Milliseconds from `now` until `time` (both us), rounded up, but no longer than a state is known that ends at `expiry`
-- (ms), if there is one.
local function wait(now, time, expiry)
  if expiry and expiry * 1000 < time then time = expiry * 1000 end
  local us = time - now + 999
  return (us - us % 1000) / 1000
end
-- [end]

-- [algorithm: sliding_log]
-- The time (us), the running total and the units of an entry; nil if the member is none. Running totals wrap around at
-- 10^15, a thousand times what can be in use, so a difference modulo 10^15 is never ambiguous.
local function log_entry(member)
  if not string.find(member, '^%x+$') or #member < 28 then return nil end
  local sub = string.sub
  return tonumber(sub(member, 1, 14), 16), tonumber(sub(member, 15, 27), 16), tonumber(sub(member, 28), 16)
end

-- The time and the rank of the first entry with which `units` have passed since the running total was `base`, where
-- `used` have passed with the newest; nil if a member is no entry. It lies after rank `dead`. The oldest entry is tried
-- first, then a guess by proportion, which is right where costs are alike, then growing steps from there.
local function log_passing(key, base, used, units, dead, newest)
  local low, high, time = dead, redis.call('ZCARD', key) - 1, newest -- not passed at low, passed at high
  local guess = low + 1
  local proportion, step = low + math.ceil((high - low) * units / used), 1
  while high - low > 1 do
    local at, total = log_entry(redis.call('ZRANGE', key, guess, guess)[1])
    if not at then return nil end
    local passed = (total - base) % 1000000000000000
    local found = passed >= units and passed <= used -- before the base it wraps around, far above what is used
    if found then high, time = guess, at else low = guess end
    local middle = math.floor((low + high) / 2)
    if proportion then
      guess, proportion = math.min(math.max(proportion, low + 1), high - 1), nil
    else
      guess = found and math.max(high - step, middle) or math.min(low + step, middle)
      step = step * 2
    end
  end
  return time, high
end

-- Decides one call at the server time `now` (us) and writes nothing. Returns the reply, or an error; then what
-- `log_store` takes.
local function sliding_log(now, key, operation, cost, receipt, limit, window_ms)
  local window = window_ms * 1000
  local now_ms = (now - now % 1000) / 1000

  local at, expiry = now, nil -- expiry: of a log in which entries count
  local base, used = 0, 0 -- the running total before the units that count, and those
  local newest -- the time of the newest entry
  local dead = 0 -- entries at the front that count no more
  local header, header_window
  local front = redis.pcall('ZRANGE', key, 0, 2)
  local first = front[1]
  if front.err then return foreign(front, 'sliding log') end
  if first then
    local w, u, b = string.match(first, '^log:(%d+):(%d+):(%d+)$')
    local last, total = log_entry(redis.call('ZRANGE', key, -1, -1)[1])
    local time, oldest, units = log_entry(front[2] or '')
    if not w or not last or not time then return foreign(front, 'sliding log') end
    -- A log from the future stands still for up to one window, and is discarded beyond.
    if now_ms < u + 0 and last - now <= window then
      if last > at then at = last end
      -- The last change forgot what was outside its own window, so a longer one now does not bring it back.
      local cut = math.max(at - window, last - w * 1000)
      if time <= cut and front[3] then
        dead = 1
        time, oldest, units = log_entry(front[3])
        if not time then return foreign(front, 'sliding log') end
        if time <= cut then
          dead = redis.call('ZCOUNT', key, 1, string.format('%d', cut))
          local member = redis.call('ZRANGE', key, dead + 1, dead + 1)[1]
          if member then time, oldest, units = log_entry(member) end
          if not time then return foreign(front, 'sliding log') end
        end
      end
      if time > cut then
        used = math.min((total - oldest) % 1000000000000000 + units, (total - b) % 1000000000000000)
        base, newest = total - used, last
        header, header_window, expiry = first, w + 0, u + 0
      end
    end
  end

  local allowed, retry, charge, refund = 1, 0, 0, 0
  if operation == 'settle' then
    if cost > 0 then
      charge = math.min(cost, 1000000000000 - used) -- debts end here, a thousand times the largest limit
    elseif receipt == 0 or (receipt > now - window and receipt <= now + window) then
      refund = math.min(-cost, used)
    end
  elseif cost == 0 or used + cost <= limit then
    if operation == 'take' then charge = cost end
  else
    allowed, retry = 0, -1
    if cost <= limit then
      local time = log_passing(key, base, used, used + cost - limit, dead, newest)
      if not time then return foreign(front, 'sliding log') end
      retry = wait(now, time + window, expiry)
    end
  end

  local clear, stamp, member, text, moved
  if charge > 0 or refund > 0 then
    clear = first and not header or refund == used and charge == 0
    if refund > 0 and not clear then
      local time, rank = log_passing(key, base, used, refund + 1, dead, newest)
      if not time then return foreign(front, 'sliding log') end
      dead = rank - 1
    end
    base, used = base + refund, used - refund
    if charge > 0 then
      local total = base + used + charge
      -- Not within one microsecond, where the totals give the order: there is room for 3 * 10^15 more.
      if total >= 1000000000000000 and at ~= newest then
        base, total = base - 1000000000000000, total - 1000000000000000
      end
      if total >= 4500000000000000 then return foreign(front, 'sliding log with room in this microsecond') end
      newest, used = at, used + charge
      stamp, member = string.format('%d', at), string.format('%014x%013x%x', at, total, charge)
    end
    if used > 0 then
      local need = newest + window + 999
      need = (need - need % 1000) / 1000
      local most = now_ms + 2 * window_ms
      if not expiry or expiry < need or expiry > most then
        expiry = math.max(need, most)
        moved = expiry
      end
      if moved or refund > 0 or header_window ~= window_ms then
        text = string.format('log:%d:%d:%d', window_ms, expiry, base % 1000000000000000)
      end
    end
  end
  local reset = used > 0 and wait(now, newest + window, expiry) or 0
  local reply = {allowed, used < limit and limit - used or 0, retry, reset, now}
  return reply, clear, stamp, member, text, header, moved, dead
end

-- Writes what was decided: no log any more, an entry, another header, another expiry; and clears away entries at the
-- front that count no more, only so many that no call holds up the server.
local function log_store(key, clear, stamp, member, text, header, expiry, dead)
  if clear then
    redis.call('UNLINK', key)
    dead = 0
  end
  if member then redis.call('ZADD', key, stamp, member) end
  if text and text ~= header then
    redis.call('ZADD', key, 0, text)
    if header then redis.call('ZREM', key, header) end
  end
  if expiry then redis.call('PEXPIREAT', key, string.format('%d', expiry)) end
  if dead > 0 and (member or text) then redis.call('ZREMRANGEBYRANK', key, 1, math.min(dead, 100)) end
end
-- [end]

-- [main]
local operation = ARGV[1]
local settles = operation == 'settle'
if #KEYS ~= 1 then return refuse('KEYS') end
if not settles and operation ~= 'take' and operation ~= 'peek' then return refuse('operation') end
if #ARGV ~= (settles and 5 or 4) then return refuse('ARGV') end
if not string.find(table.concat(ARGV, ' ', 2), settles and '^%-?%d+ %d+ %d+ %d+$' or '^%d+ %d+ %d+$') then
  return refuse(malformed({'cost', 'limit', 'window_ms', 'receipt'}))
end
local cost, limit, window_ms = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local receipt = settles and ARGV[5] + 0 or 0
if cost > 1000000000 or cost < -1000000000 then return refuse('cost') end
if limit < 1 or limit > 1000000000 then return refuse('limit') end
if window_ms < 1 or window_ms > 31622400000 then return refuse('window_ms') end
if receipt > 9007199254740991 then return refuse('receipt') end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local reply, clear, stamp, member, text, header, expiry, dead =
  sliding_log(now, KEYS[1], operation, cost, receipt, limit, window_ms)
if clear or member or text then log_store(KEYS[1], clear, stamp, member, text, header, expiry, dead) end
return reply
