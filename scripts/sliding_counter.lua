-- Sluice sliding counter: two aligned windows, the one before weighted by the part of it that is still in view.
--
-- KEYS[1]  the state of one limit                   sluice:{<subject digest>}:<policy>
-- ARGV[1]  operation   take | peek | settle
-- ARGV[2]  cost        units. take, peek: 0 to 10^9. settle: actual - charged, -10^9 to 10^9
-- ARGV[3]  limit       units per window, 1 to 10^9
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
-- Needs    Redis >= 6.0 or Valkey. Commands: TIME, GET, SET, PEXPIREAT, UNLINK.
--          No key but KEYS[1] is touched.
--
-- State    a string, "counter:<window_ms>:<last>:<previous>:<current>": the counts of the window that `last` (ms)
--          lies in, and of the one before. Windows are aligned to the epoch; the key expires at the end of the next.

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

-- [algorithm: sliding_counter]
-- Milliseconds from `now_ms` until no more than `most` units (>= 0) are used, but no longer than the state is known. It
-- is solved, not searched: the least elapsed time for which previous * (window - elapsed) < (free + 1) * window.
local function counter_wait(now_ms, most, previous, current, start, window, expiry)
  local fading, free = previous, most - current
  if free < 0 then -- too much in this window alone: in the next one it fades
    start, fading, free = start + window, current, most
  end
  local time = start + muldiv(window, fading - free - 1, 0, fading) + 1
  return (expiry < time and expiry or time) - now_ms
end

-- Decides one call at the server time `now` (us) and writes nothing. Returns the reply, or an error; then what `store`
-- takes.
local function sliding_counter(now, key, operation, cost, receipt, limit, window)
  local now_ms = (now - now % 1000) / 1000

  local previous, current = 0, 0
  local at, expiry = now_ms, nil -- expiry: of a state that counts
  local kept = false -- whether the key's expiry is already that of the window of `at`
  local state = redis.pcall('GET', key)
  if state then
    local w, last, p, c
    if type(state) == 'string' then w, last, p, c = string.match(state, '^counter:(%d+):(%d+):(%d+):(%d+)$') end
    if not w then return foreign(state, 'sliding counter') end
    w, last, p, c = w + 0, last + 0, p + 0, c + 0
    local elapsed = last % w
    local till = last - elapsed + 2 * w
    -- A state from the future stands still for up to one window, and is discarded beyond.
    if now_ms < till and last - now_ms <= window then
      expiry = till
      if last > at then at = last end
      if w ~= window then -- all that the old window knew counts as charged at `last`, rounded up
        p, c = 0, math.min(c + muldiv(p, w - elapsed, w - 1, w), 1000000000000)
      end
      local passed = (at - at % window) - (last - last % window)
      if passed == 0 then
        previous, current, kept = p, c, w == window
      elseif passed == window then
        previous = c
      end
    end
  end
  local elapsed = at % window
  local start = at - elapsed

  local used = current + muldiv(previous, window - elapsed, 0, window)
  local allowed, retry = 1, 0
  local from_previous, from_current = 0, 0 -- what the call changes
  if operation == 'settle' then
    if cost > 0 then
      from_current = math.min(cost, 1000000000000 - current) -- debts end here, a thousand times the largest limit
    elseif receipt == 0 then -- the oldest first
      from_previous = math.max(cost, -previous)
      from_current = math.max(cost - from_previous, -current)
    else
      local charged = (receipt - receipt % 1000) / 1000
      charged = charged - charged % window
      if charged == start then
        from_current = math.max(cost, -current)
      elseif charged == start - window then
        from_previous = math.max(cost, -previous)
      end
    end
  elseif cost == 0 or used + cost <= limit then
    if operation == 'take' then from_current = cost end
  else
    allowed, retry = 0, -1
    if cost <= limit then retry = counter_wait(now_ms, limit - cost, previous, current, start, window, expiry) end
  end

  local text, moved
  if from_previous ~= 0 or from_current ~= 0 then
    previous, current = previous + from_previous, current + from_current
    used = current + muldiv(previous, window - elapsed, 0, window)
    if previous == 0 and current == 0 then
      text = ''
    else
      text = string.format('counter:%d:%d:%d:%d', window, at, previous, current)
      expiry = start + 2 * window
      moved = not kept and expiry or nil
    end
  end
  local reset = used > 0 and counter_wait(now_ms, 0, previous, current, start, window, expiry) or 0
  return {allowed, used < limit and limit - used or 0, retry, reset, now}, text, moved
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
local reply, text, expiry = sliding_counter(now, KEYS[1], operation, cost, receipt, limit, window_ms)
store(KEYS[1], text, expiry)
return reply
