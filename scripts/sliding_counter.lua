-- Sluice sliding counter: two aligned windows, the one before weighted by the part of it that is still in view.
--
-- KEYS[1]  the counter's state                      sluice:{<subject digest>}:<policy>
-- ARGV[1]  operation   take | peek | settle
-- ARGV[2]  cost        units. take, peek: 0 to 10^9. settle: actual - charged, -10^9 to 10^9
-- ARGV[3]  limit       units per window, 1 to 10^9
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
-- Needs    Redis >= 6.0 or Valkey; GET, SET, PEXPIREAT, UNLINK, TIME. Only KEYS[1] is touched.
--
-- State    a string, "counter:<window_ms>:<last>:<previous>:<current>": the counts of the window that `last` (ms)
--          lies in, and of the one before. Windows are aligned to the epoch; the key expires at the end of the next.

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

-- [algorithm: sliding_counter]
local MAX_COUNT = 1000000000000 -- of each window: debts end here, a thousand times the largest limit

-- Decides one call at the server time `now` (us). Returns the reply, and a function that writes the new state where
-- there is anything to write; or the error.
local function sliding_counter(now, key, operation, cost, receipt, limit, window)
  local now_ms = floor(now / 1000)

  local previous, current = 0, 0
  local at = now_ms
  local expiry -- the end of a state that counts
  local kept = false -- whether the key's expiry already is that of the window of `at`
  local state = redis.pcall('GET', key)
  if state then
    if type(state) == 'table' then return foreign(state, 'sliding counter') end
    local w, l, p, c = string.match(state, '^counter:(%d+):(%d+):(%d+):(%d+)$')
    if not w then return foreign({}, 'sliding counter') end
    local last = tonumber(l)
    w, p, c = tonumber(w), tonumber(p), tonumber(c)
    local elapsed = last % w
    local till = last - elapsed + 2 * w
    -- A state from the future stands still for up to one window, and is discarded beyond.
    if now_ms < till and last - now_ms <= window then
      expiry = till
      if last > at then at = last end
      if w ~= window then -- all that the old window knew counts as charged at `last`, rounded up
        local carried, rest = muldiv(p, w - elapsed, w)
        if rest > 0 then carried = carried + 1 end
        p, c = 0, math.min(carried + c, MAX_COUNT)
      end
      local windows = (at - at % window - (last - last % window)) / window
      if windows == 0 then
        previous, current = p, c
        kept = w == window
      elseif windows == 1 then
        previous = c
      end
    end
  end

  local elapsed = at % window
  local start = at - elapsed

  -- Milliseconds from now until no more than `most` units are used, most >= 0, but no longer than the state is known.
  -- It is solved, not searched: the least elapsed for which previous * (window - elapsed) < (free + 1) * window.
  local function wait_ms(most)
    local edge, fading, free = start, previous, most - current
    if free < 0 then -- too much in this window alone: in the next one it fades
      edge, fading, free = start + window, current, most
    end
    local time = edge + muldiv(window, fading - free - 1, fading) + 1
    if expiry and expiry < time then time = expiry end
    return time - now_ms
  end

  local used = muldiv(previous, window - elapsed, window) + current
  local allowed, retry, write = 1, 0, nil
  local from_previous, from_current = 0, 0 -- what the call changes
  if operation == 'settle' then
    if cost > 0 then
      from_current = math.min(cost, MAX_COUNT - current)
    elseif receipt == 0 then -- the oldest first
      from_previous = math.max(cost, -previous)
      from_current = math.max(cost - from_previous, -current)
    else
      local charged_ms = floor(receipt / 1000)
      local charged = charged_ms - charged_ms % window
      if charged == start then
        from_current = math.max(cost, -current)
      elseif charged == start - window then
        from_previous = math.max(cost, -previous)
      end
    end
  elseif used + cost <= limit then
    if operation == 'take' then from_current = cost end
  else
    allowed = 0
    retry = cost > limit and -1 or wait_ms(limit - cost)
  end

  if from_previous ~= 0 or from_current ~= 0 then
    previous, current = previous + from_previous, current + from_current
    used = muldiv(previous, window - elapsed, window) + current
    expiry = start + 2 * window
    write = function()
      if previous == 0 and current == 0 then return redis.call('UNLINK', key) end
      local text = string.format('counter:%.0f:%.0f:%.0f:%.0f', window, at, previous, current)
      if kept then return redis.call('SET', key, text, 'KEEPTTL') end
      redis.call('SET', key, text)
      redis.call('PEXPIREAT', key, string.format('%.0f', expiry))
    end
  end
  return {allowed, used < limit and limit - used or 0, retry, used > 0 and wait_ms(0) or 0, now}, write
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
local reply, write = sliding_counter(now, KEYS[1], operation, cost, receipt, limit, window_ms)
if write then write() end
return reply
