-- Sluice token bucket: `capacity` tokens, refilled continuously, fractions kept.
--
-- KEYS[1]  the state of one limit                   sluice:{<subject digest>}:<policy>
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
--          [4] reset_after_ms  the least wait until the bucket is full, 0 if it is now
--          [5] server_time_us  TIME as read by this call, the receipt for settle
--
-- Errors   SLUICEARG <argument> must be <range>     nothing was read or written
--          SLUICESTATE KEYS[1] ...                  the key holds something else, nothing was written
-- Needs    Redis >= 6.0 or Valkey. Commands: TIME, GET, SET, PEXPIREAT, UNLINK.
--          No key but KEYS[1] is touched.
--
-- State    a string, "bucket:<period_ms>:<until>:<last>:<deficit>:<fraction>": at `last` (us) the bucket lacked
--          deficit + fraction / (1000 * period_ms) tokens; the key expires at `until` (ms).

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

-- [shared: muldiv]
-- floor((a * b + extra) / c) and the remainder. Doubles are exact below 2^53 only: where the sum may pass that, long
-- division over the digits of a in base 128. For a < 2^49 and 128 * (b + c) < 2^53; a quotient above 2^53 is only near.
local function muldiv(a, b, extra, c)
  local sum = a * b + extra
  if sum < 9007199254740992 then
    local rest = sum % c
    return (sum - rest) / c, rest
  end
  local quotient, rest = 0, 0
  local scale = 4398046511104 -- 128^6
  while scale >= 1 do
    sum = rest * 128 + math.floor(a / scale) % 128 * b
    rest = sum % c
    quotient = quotient * 128 + (sum - rest) / c
    scale = scale / 128
  end
  sum = rest + extra
  rest = sum % c
  return quotient + (sum - rest) / c, rest
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

-- [shared: store]
-- Writes what was decided: nothing, no state any more, or a state; `expiry` (ms) where the key's own is not right.
local function store(key, text, expiry)
  if not text then return end
  if text == '' then
    redis.call('UNLINK', key)
  elseif not expiry then
    redis.call('SET', key, text, 'KEEPTTL')
  else
    redis.call('SET', key, text)
    redis.call('PEXPIREAT', key, string.format('%d', expiry))
  end
end
-- [end]

-- [algorithm: token_bucket]
-- Decides one call at the server time `now` (us) and writes nothing. Returns the reply, or an error; then what `store`
-- takes.
local function token_bucket(now, key, operation, cost, receipt, capacity, refill, period_ms)
  local period = period_ms * 1000
  local fill = muldiv(capacity, period, refill - 1, refill) -- us from empty to full, rounded up
  if fill > 31622400000000 then return refuse('period_ms') end
  local now_ms = (now - now % 1000) / 1000

  local deficit, fraction = 0, 0 -- what the bucket lacks at `at`: deficit + fraction / period tokens
  local at, expiry = now, nil -- expiry: of a state that counts
  local state = redis.pcall('GET', key)
  if state then
    local p, u, last, d, f
    if type(state) == 'string' then
      p, u, last, d, f = string.match(state, '^bucket:(%d+):(%d+):(%d+):(%d+):(%d+)$')
    end
    if not p then return foreign(state, 'token bucket') end
    u, last = u + 0, last + 0
    -- A state from the future stands still for up to one fill time, and is discarded beyond.
    if now_ms < u and last - now <= fill then
      deficit, fraction = d + 0, f + 0
      if fraction > 0 and p + 0 ~= period_ms then -- of another period: round up to a whole token
        deficit, fraction = deficit + 1, 0
      end
      if last > at then at = last end
      local tokens, rest = muldiv(at - last, refill, 0, period)
      deficit, fraction = deficit - tokens, fraction - rest
      if fraction < 0 then deficit, fraction = deficit - 1, fraction + period end
      if deficit < 0 then deficit, fraction = 0, 0 end
      expiry = u
    end
  end

  local used = fraction > 0 and deficit + 1 or deficit
  local allowed, retry, change = 1, 0, 0
  if operation == 'settle' then
    if cost > 0 then
      -- A debt ends at minus one capacity, so that no state has to outlive two fill times.
      local most = 2 * capacity
      if used + cost <= most then
        change = cost
      elseif deficit < most then
        change, fraction = most - deficit, 0
      end
    elseif used > 0 and (receipt == 0 or (receipt > now - fill and receipt <= now + fill)) then
      change = cost
    end
  elseif cost == 0 or used + cost <= capacity then
    if operation == 'take' then change = cost end
  else
    allowed, retry = 0, -1
    if cost <= capacity then
      retry = wait(now, at + muldiv(deficit + cost - capacity, period, fraction + refill - 1, refill), expiry)
    end
  end

  if change ~= 0 then
    deficit = deficit + change
    if deficit < 0 then deficit, fraction = 0, 0 end
    used = fraction > 0 and deficit + 1 or deficit
  end
  if used == 0 then return {allowed, capacity, retry, 0, now}, change ~= 0 and '' end

  local full = at + muldiv(deficit, period, fraction + refill - 1, refill)
  local text, moved
  if change ~= 0 then
    local need = full > at + fill and full or at + fill
    need = (need + 999 - (need + 999) % 1000) / 1000
    local most = now_ms + 2 * ((fill + 999 - (fill + 999) % 1000) / 1000)
    if not expiry or expiry < need or expiry > most then
      moved = math.min(math.max(need, most), now_ms + 63244800000)
      expiry = moved
    end
    text = string.format('bucket:%d:%d:%d:%d:%d', period_ms, expiry, at, deficit, fraction)
  end
  return {allowed, used < capacity and capacity - used or 0, retry, wait(now, full, expiry), now}, text, moved
end
-- [end]

-- [main]
local operation = ARGV[1]
local settles = operation == 'settle'
if #KEYS ~= 1 then return refuse('KEYS') end
if not settles and operation ~= 'take' and operation ~= 'peek' then return refuse('operation') end
if #ARGV ~= (settles and 6 or 5) then return refuse('ARGV') end
if not string.find(table.concat(ARGV, ' ', 2), settles and '^%-?%d+ %d+ %d+ %d+ %d+$' or '^%d+ %d+ %d+ %d+$') then
  return refuse(malformed({'cost', 'capacity', 'refill', 'period_ms', 'receipt'}))
end
local cost, capacity, refill, period_ms = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local receipt = settles and ARGV[6] + 0 or 0
if cost > 1000000000 or cost < -1000000000 then return refuse('cost') end
if capacity < 1 or capacity > 1000000000 then return refuse('capacity') end
if refill < 1 or refill > 1000000000 then return refuse('refill') end
if period_ms < 1 or period_ms > 31622400000 then return refuse('period_ms') end
if receipt > 9007199254740991 then return refuse('receipt') end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local reply, text, expiry = token_bucket(now, KEYS[1], operation, cost, receipt, capacity, refill, period_ms)
store(KEYS[1], text, expiry)
return reply
