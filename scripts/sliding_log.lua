-- Sluice sliding log: exact. Whatever was admitted in (now - window, now] counts, nothing else does.
--
-- KEYS[1]  the log's state                          sluice:{<subject digest>}:<policy>
-- ARGV[1]  operation   take | peek | settle
-- ARGV[2]  cost        units. take, peek: 0 to 10^9. settle: actual - charged, -10^9 to 10^9
-- ARGV[3]  limit       units in any window, 1 to 10^9
-- ARGV[4]  window_ms   milliseconds, 1 to 31622400000 (366 days)
-- ARGV[5]  receipt     settle only: reply[5] of the take being settled, 0 = none
--
-- Reply    [1] allowed         1 or 0 (settle: always 1)
--          [2] remaining       units free after this call, never negative
--          [3] retry_after_ms  0 if allowed, else the least wait that admits this call; -1 if cost > limit
--          [4] reset_after_ms  the least wait until the whole limit is free, 0 if it is
--          [5] server_time_us  TIME as read by this call, the receipt for settle
--
-- Errors   SLUICEARG <argument> must be <range>     nothing was read or written
--          SLUICESTATE KEYS[1] ...                  the key holds something else, nothing was written
-- Needs    Redis >= 6.0 or Valkey; ZADD, ZCARD, ZCOUNT, ZRANGE, ZREM, ZREMRANGEBYRANK, PEXPIREAT, UNLINK, TIME.
--          Only KEYS[1] is touched.
--
-- State    a sorted set. Its first member, at score 0, is "log:<window_ms>:<until>:<base>": the window of the last
--          change, the moment (ms) at which the key expires, and the running total up to which units are forgotten or
--          given back. Then one member for each charge, whatever its cost: score = its time (us), "<total>:<cost>" =
--          the running total with it (16 digits, so that equal times sort by total) and its own units.

local floor = math.floor

-- [shared: arguments]
local BILLION = 1000000000
local MAX_MS = 31622400000 -- 366 days
local MAX_RECEIPT = 9007199254740991 -- 2^53 - 1

local function refuse(argument, range)
  return redis.error_reply('SLUICEARG ' .. argument .. ' must be ' .. range)
end

-- The integer that a text of digits stands for, or nil. tonumber alone would take 1e3, 0x10, ' 5' and nan.
local function integer(text, least, most)
  if not string.find(text, '^%d+$') then return nil end
  local number = tonumber(text)
  if number < least or number > most then return nil end
  return number
end

-- The cost and the receipt, which mean the same to every algorithm, or nil and the error.
local function read_cost(operation, cost, receipt)
  if operation ~= 'settle' then
    local units = integer(cost, 0, BILLION)
    if not units then return nil, refuse('cost', 'an integer from 0 to 1000000000') end
    return units, 0
  end
  local sign, digits = string.match(cost, '^(%-?)(%d+)$')
  local units = digits and integer(digits, 0, BILLION)
  if not units then return nil, refuse('cost', 'an integer from -1000000000 to 1000000000') end
  receipt = integer(receipt, 0, MAX_RECEIPT)
  if not receipt then return nil, refuse('receipt', 'an integer from 0 to 9007199254740991') end
  return sign == '-' and -units or units, receipt
end
-- [end]

-- [shared: foreign]
-- The error for a key that holds something else. A read that failed for another reason (no permission, say) keeps its
-- own error.
local function foreign(failure, kind)
  if failure.err and not string.find(failure.err, '^WRONGTYPE') then return failure end
  return redis.error_reply('SLUICESTATE KEYS[1] holds something that is not a ' .. kind)
end
-- [end]

-- [algorithm: sliding_log]
local MAX_USED = 1000000000000 -- debts end here, a thousand times the largest limit
local WRAP = 1000000000000000 -- running totals are kept below this, a thousand times what can be in use
local TRIM = 100 -- dead entries that one call removes at the most, so that no call stalls the server

-- Decides one call at the server time `now` (us). Returns the reply, and a function that writes the new state where
-- there is anything to write; or the error.
local function sliding_log(now, key, operation, cost, receipt, limit, window_ms)
  local window = window_ms * 1000
  local now_ms = floor(now / 1000)

  local at = now
  local total, used = 0, 0 -- the running total, and the units of it that count
  local newest -- the time of the newest entry
  local oldest_total, oldest_time -- of the oldest entry that counts
  local dead = 0 -- entries at the front that count no more
  local header, header_window, expiry
  local first = redis.pcall('ZRANGE', key, 0, 1, 'WITHSCORES')
  if first.err then return foreign(first, 'sliding log') end
  local exists = #first > 0
  if exists then
    local w, u, b = string.match(first[1], '^log:(%d+):(%d+):(%d+)$')
    local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
    local last_total = string.match(last[1], '^(%d+):%d+$')
    if not w or not last_total then return foreign({}, 'sliding log') end
    newest = tonumber(last[2])
    -- A log from the future stands still for up to one window, and is discarded beyond.
    if now_ms < tonumber(u) and newest - now <= window then
      header, header_window, expiry = first[1], tonumber(w), tonumber(u)
      if newest > at then at = newest end
      -- The last change forgot what was outside its own window, so a longer one now does not bring it back.
      local cut = math.max(at - window, newest - header_window * 1000)
      local oldest, oldest_score = first[3], tonumber(first[4])
      if oldest_score <= cut then
        dead = redis.call('ZCOUNT', key, 1, string.format('%.0f', cut))
        local entry = redis.call('ZRANGE', key, dead + 1, dead + 1, 'WITHSCORES')
        oldest, oldest_score = entry[1], tonumber(entry[2])
      end
      if oldest then
        total = tonumber(last_total)
        local entry_total, entry_cost = string.match(oldest, '^(%d+):(%d+)$')
        if not entry_total then return foreign({}, 'sliding log') end
        oldest_total, oldest_time = tonumber(entry_total), oldest_score
        used = math.min((total - oldest_total) % WRAP + tonumber(entry_cost), (total - tonumber(b)) % WRAP)
      end
    end
  end

  -- The first entry with which `units` of those that count have passed, and its rank.
  local function entry_with(units)
    local base = total - used
    local function passed(entry_total)
      local sum = (entry_total - base) % WRAP
      return sum <= used and sum >= units -- an entry before the base wraps around, far above what is used
    end
    if passed(oldest_total) then return oldest_time, dead + 1 end
    local low, high = dead + 1, redis.call('ZCARD', key) - 1 -- not passed at low, passed at high
    local time = newest
    while high - low > 1 do
      local middle = floor((low + high) / 2)
      local entry = redis.call('ZRANGE', key, middle, middle, 'WITHSCORES')
      if passed(tonumber(string.sub(entry[1], 1, 16))) then
        high, time = middle, tonumber(entry[2])
      else
        low = middle
      end
    end
    return time, high
  end

  -- Milliseconds from now until an entry of that time leaves, but no longer than the log is known.
  local function wait_ms(time)
    local leaves = time + window
    if expiry and expiry * 1000 < leaves then leaves = expiry * 1000 end
    return floor((leaves - now + 999) / 1000)
  end

  local allowed, retry, write = 1, 0, nil
  local charge, refund = 0, 0
  if operation == 'settle' then
    if cost > 0 then
      charge = math.min(cost, MAX_USED - used)
    elseif receipt == 0 or (receipt > now - window and receipt <= now + window) then
      refund = math.min(-cost, used)
    end
  elseif used + cost <= limit then
    if operation == 'take' then charge = cost end
  else
    allowed = 0
    if cost > limit then
      retry = -1
    else
      retry = wait_ms((entry_with(used + cost - limit)))
    end
  end

  if charge > 0 or refund > 0 then
    local base = (total - used + refund) % WRAP
    local fresh = used == 0
    if fresh then total, base = 0, 0 end
    if refund > 0 and refund < used then
      local _, rank = entry_with(refund + 1)
      dead = rank - 1
    end
    used = used + charge - refund
    if charge > 0 then
      total = total + charge
      -- Never within one microsecond, where the totals give the order.
      if total >= WRAP and at ~= newest then total = total - WRAP end
      if total > 9000000000000000 then
        return redis.error_reply('SLUICESTATE KEYS[1] has had more than 8 * 10^15 units charged in one microsecond')
      end
      newest = at
    end
    local need, most = floor((newest + window + 999) / 1000), now_ms + 2 * window_ms
    local kept = not fresh and need <= expiry and expiry <= most
    if not kept then expiry = math.max(need, most) end
    write = function()
      if used == 0 then return redis.call('UNLINK', key) end
      if fresh and exists then redis.call('UNLINK', key) end
      if charge > 0 then
        redis.call('ZADD', key, string.format('%.0f', at), string.format('%016.0f:%.0f', total, charge))
      end
      if not kept or refund > 0 or header_window ~= window_ms then
        local text = string.format('log:%.0f:%.0f:%.0f', window_ms, expiry, base)
        if text ~= header then
          redis.call('ZADD', key, 0, text)
          if not fresh then redis.call('ZREM', key, header) end
        end
        if not kept then redis.call('PEXPIREAT', key, string.format('%.0f', expiry)) end
      end
      if not fresh and dead > 0 then redis.call('ZREMRANGEBYRANK', key, 1, math.min(dead, TRIM)) end
    end
  end
  return {allowed, used < limit and limit - used or 0, retry, used > 0 and wait_ms(newest) or 0, now}, write
end
-- [end]

-- [main]
local operation = ARGV[1]
if #KEYS ~= 1 then return refuse('KEYS', 'exactly one key') end
if operation ~= 'take' and operation ~= 'peek' and operation ~= 'settle' then
  return refuse('operation', 'take, peek or settle')
end
if #ARGV ~= (operation == 'settle' and 5 or 4) then
  return refuse('ARGV', 'operation cost limit window_ms, and for settle a receipt')
end
local cost, receipt = read_cost(operation, ARGV[2], ARGV[5])
if not cost then return receipt end
local limit = integer(ARGV[3], 1, BILLION)
if not limit then return refuse('limit', 'an integer from 1 to 1000000000') end
local window_ms = integer(ARGV[4], 1, MAX_MS)
if not window_ms then return refuse('window_ms', 'an integer from 1 to 31622400000') end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local reply, write = sliding_log(now, KEYS[1], operation, cost, receipt, limit, window_ms)
if write then write() end
return reply
