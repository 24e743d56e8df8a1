-- Sluice token bucket: `capacity` tokens, refilled continuously, fractions kept.
--
-- KEYS[1]  the bucket's state                       sluice:{<subject digest>}:<policy>
-- ARGV[1]  operation   take | peek | settle
-- ARGV[2]  cost        tokens. take, peek: 0 to 10^9. settle: actual - charged, -10^9 to 10^9
-- ARGV[3]  capacity    tokens, 1 to 10^9
-- ARGV[4]  refill      tokens per period, 1 to 10^9
-- ARGV[5]  period_ms   milliseconds, 1 to 31622400000 (366 days)
-- ARGV[6]  receipt     settle only: reply[5] of the take being settled, 0 = none
--          An empty bucket must be full again within 366 days: capacity * period_ms / refill <= 31622400000.
--
-- Reply    [1] allowed         1 or 0 (settle: always 1)
--          [2] remaining       whole tokens free after this call, never negative
--          [3] retry_after_ms  0 if allowed, else the least wait that admits this call; -1 if cost > capacity
--          [4] reset_after_ms  the least wait until the bucket is full, 0 if it is
--          [5] server_time_us  TIME as read by this call, the receipt for settle
--
-- Errors   SLUICEARG <argument> must be <range>     nothing was read or written
--          SLUICESTATE KEYS[1] ...                  the key holds something else, nothing was written
-- Needs    Redis >= 6.0 or Valkey; GET, SET, PEXPIREAT, UNLINK, TIME. Only KEYS[1] is touched.
--
-- State    a string, "bucket:<period_ms>:<until>:<last>:<deficit>:<fraction>": at `last` (us) the bucket lacked
--          deficit + fraction / (1000 * period_ms) tokens; the key expires at `until` (ms).

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

-- [shared: muldiv]
-- floor(a * b / c) and the remainder, exact although a * b may pass 2^53, where doubles stop being exact: long
-- division over the digits of a in base 128. For a < 2^49 and 128 * (b + c) < 2^53; a quotient above 2^53 is only near.
local function muldiv(a, b, c)
  local product = a * b
  if product < 9007199254740992 then
    local rest = product % c
    return (product - rest) / c, rest
  end
  local quotient, rest = 0, 0
  local scale = 4398046511104 -- 128^6
  while scale >= 1 do
    local part = rest * 128 + floor(a / scale) % 128 * b
    rest = part % c
    quotient = quotient * 128 + (part - rest) / c
    scale = scale / 128
  end
  return quotient, rest
end
-- [end]

-- [algorithm: token_bucket]
-- Decides one call at the server time `now` (us). Returns the reply, and a function that writes the new state where
-- there is anything to write; or the error.
local function token_bucket(now, key, operation, cost, receipt, capacity, refill, period_ms)
  local period = period_ms * 1000
  local fill, part = muldiv(capacity, period, refill) -- us from empty to full, rounded up
  if part > 0 then fill = fill + 1 end
  if fill > MAX_MS * 1000 then
    return refuse('period_ms', 'short enough to fill an empty bucket within 31622400000 ms')
  end
  local fill_ms = floor((fill + 999) / 1000)
  local now_ms = floor(now / 1000)

  local deficit, fraction = 0, 0 -- what the bucket lacks at `at`: deficit + fraction / period tokens
  local at = now
  local expiry -- `until` of a state that counts
  local state = redis.pcall('GET', key)
  if state then
    if type(state) == 'table' then return foreign(state, 'token bucket') end
    local p, u, l, d, f = string.match(state, '^bucket:(%d+):(%d+):(%d+):(%d+):(%d+)$')
    if not p then return foreign({}, 'token bucket') end
    local last = tonumber(l)
    -- A state from the future stands still for up to one fill time, and is discarded beyond.
    if now_ms < tonumber(u) and last - now <= fill then
      expiry = tonumber(u)
      deficit, fraction = tonumber(d), tonumber(f)
      if tonumber(p) ~= period_ms and fraction > 0 then -- of another period: round up to a whole token
        deficit, fraction = deficit + 1, 0
      end
      if last > at then at = last end
      local tokens, rest = muldiv(at - last, refill, period)
      deficit, fraction = deficit - tokens, fraction - rest
      if fraction < 0 then deficit, fraction = deficit - 1, fraction + period end
      if deficit < 0 then deficit, fraction = 0, 0 end
      if deficit == 0 and fraction == 0 then expiry = nil end -- full is the same as no key
    end
  end

  -- The time (us) at which the bucket lacks no more than `most` tokens; later than `at`.
  local function lacks_at(most)
    local wait, rest = muldiv(deficit - most, period, refill)
    return at + wait + floor((rest + fraction + refill - 1) / refill)
  end

  -- Milliseconds from now to a time, but no longer than the state is known.
  local function wait_ms(time)
    if expiry and expiry * 1000 < time then time = expiry * 1000 end
    return floor((time - now + 999) / 1000)
  end

  local used = fraction > 0 and deficit + 1 or deficit
  local allowed, retry, write = 1, 0, nil
  local change = 0 -- tokens to add to the deficit
  if operation == 'settle' then
    if cost > 0 then
      -- A debt ends at minus one capacity, so that no state has to outlive two fill times.
      local most = 2 * capacity
      if used + cost <= most then
        change = cost
      elseif deficit < most then
        change, fraction = most - deficit, 0
      end
    elseif cost < 0 and used > 0 and (receipt == 0 or (receipt > now - fill and receipt <= now + fill)) then
      change = cost
    end
  elseif used + cost <= capacity then
    if operation == 'take' then change = cost end
  else
    allowed = 0
    retry = cost > capacity and -1 or wait_ms(lacks_at(capacity - cost))
  end

  if change ~= 0 then
    deficit = deficit + change
    if deficit < 0 then deficit, fraction = 0, 0 end
    used = fraction > 0 and deficit + 1 or deficit
  end
  local full = used > 0 and lacks_at(0) or now

  if change ~= 0 then
    local need = at + fill
    if full > need then need = full end
    need = floor((need + 999) / 1000)
    local most = now_ms + 2 * fill_ms
    local kept = expiry and need <= expiry and expiry <= most
    if not kept then expiry = math.min(math.max(need, most), now_ms + 2 * MAX_MS) end
    write = function()
      if used == 0 then return redis.call('UNLINK', key) end
      local text = string.format('bucket:%.0f:%.0f:%.0f:%.0f:%.0f', period_ms, expiry, at, deficit, fraction)
      if kept then return redis.call('SET', key, text, 'KEEPTTL') end
      redis.call('SET', key, text)
      redis.call('PEXPIREAT', key, string.format('%.0f', expiry))
    end
  end
  return {allowed, used < capacity and capacity - used or 0, retry, used > 0 and wait_ms(full) or 0, now}, write
end
-- [end]

-- [main]
local operation = ARGV[1]
if #KEYS ~= 1 then return refuse('KEYS', 'exactly one key') end
if operation ~= 'take' and operation ~= 'peek' and operation ~= 'settle' then
  return refuse('operation', 'take, peek or settle')
end
if #ARGV ~= (operation == 'settle' and 6 or 5) then
  return refuse('ARGV', 'operation cost capacity refill period_ms, and for settle a receipt')
end
local cost, receipt = read_cost(operation, ARGV[2], ARGV[6])
if not cost then return receipt end
local capacity, refill = integer(ARGV[3], 1, BILLION), integer(ARGV[4], 1, BILLION)
if not capacity then return refuse('capacity', 'an integer from 1 to 1000000000') end
if not refill then return refuse('refill', 'an integer from 1 to 1000000000') end
local period_ms = integer(ARGV[5], 1, MAX_MS)
if not period_ms then return refuse('period_ms', 'an integer from 1 to 31622400000') end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local reply, write = token_bucket(now, KEYS[1], operation, cost, receipt, capacity, refill, period_ms)
if write then write() end
return reply
