-- Sluice sliding counter: two aligned windows, the one before weighted by the part of it that is still in view.
--
-- KEYS[1]  the state of one limit                   sluice:{<subject digest>}:<policy>
-- ARGV[1]  operation   take | peek | settle
-- ARGV[2]  cost        units. take, peek: 0 to 10^9. settle: actual - charged, -10^9 to 10^9
-- ARGV[3]  limit       units per window, 1 to 10^9
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
-- Needs    Redis >= 6.0 or Valkey, of 64 bits. Commands: TIME, GET, SET, PEXPIREAT, UNLINK.
--          No key but KEYS[1] is touched.
--
-- State    a string, "counter:<window_ms>:<last>:<previous>:<current>": the counts of the window that `last` (ms)
--          lies in, and of the one before. Windows are aligned to the epoch; the key expires at the end of the next.

-- [shared: muldiv]
-- floor((a * b + extra) / c) and the remainder. Doubles are exact below 2^53 only: where the sum may pass that, long
-- division over the digits of a in base 128. For a < 2^49 and 128 * (b + c) < 2^53; a quotient above 2^53 is only near.
local function muldiv(a, b, extra, c)
  local sum = a * b + extra
  if sum < 9007199254740992 then
    local rest = sum % c
    return (sum - rest) / c, rest
  end
  if a % c == 0 then
    local rest = extra % c
    return a / c * b + (extra - rest) / c, rest
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

-- [shared: counter_wait]
-- Milliseconds from `now_ms` until no more than `most` units (>= 0) are used, but no longer than the state is known. It
-- is solved, not searched: the least elapsed time for which previous * (window - elapsed) < (free + 1) * window.
local function counter_wait(now_ms, most, previous, current, start, window, expiry)
  local free = most - current
  if free < 0 then -- too much in this window alone: in the next one it fades
    start, previous, free = start + window, current, most
  end
  local time = start + muldiv(window, previous - free - 1, 0, previous) + 1
  return (expiry < time and expiry or time) - now_ms
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
cost, limit = cost + 0, limit + 0
local receipt = operation == 'settle' and args[5] + 0 or 0
local key, clock = keys[1], redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- [algorithm: sliding_counter]
-- Decides one call at the server time `now` (us): the numbers of its reply, and what the state is to be.
local window = window_ms + 0
local now_ms = (now - now % 1000) / 1000

local previous, current = 0, 0
local at, expiry = now_ms, nil -- expiry: of a state that counts
local kept = false -- whether the key's expiry is already that of the window of `at`
local elapsed, start -- of `at` in its window
local state = redis.pcall('GET', key)
if state then
  local failed = state.err -- none of a string
  local w, last, p, c
  if not failed and #state < 90 then
    w, last, p, c = string.match(state, '^counter:(%d+):(%d+):(%d+):(%d+)$')
  end
  local its_window
  if w then
    its_window = w == window_ms and window or w + 0
    last, p, c = last + 0, p + 0, c + 0
  end
  -- Nor is it ours if the numbers are none that this script writes.
  if not w or its_window < 1 or its_window > 31622400000 or p > 1000000000000 or c > 1000000000000 then
    if failed and not string.find(failed, '^WRONGTYPE') then return state end
    return redis.error_reply('SLUICESTATE KEYS[1] holds something that is not a sliding counter')
  end
  local began = last - last % its_window
  -- A state from the future stands still for up to one window, and is discarded beyond.
  if now_ms < began + 2 * its_window and last - now_ms <= window then
    expiry = began + 2 * its_window
    if last > at then at = last end
    if its_window ~= window then -- all that the old window knew counts as charged at `last`, rounded up
      c = math.min(c + muldiv(p, its_window - (last - began), its_window - 1, its_window), 1000000000000)
      p, began = 0, last - last % window
    end
    elapsed = at % window
    start = at - elapsed
    if start == began then
      previous, current, kept = p, c, its_window == window
    elseif start == began + window then
      previous = c
    end
  end
end
if not start then
  elapsed = at % window
  start = at - elapsed
end

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

-- `text`: the state to be written, '' for none any more; `moved`: the key's expiry (ms), where its own won't do.
local text, moved
if from_previous ~= 0 or from_current ~= 0 then
  previous, current = previous + from_previous, current + from_current
  used = current + muldiv(previous, window - elapsed, 0, window)
  if previous == 0 and current == 0 then
    text = ''
  else
    expiry = start + 2 * window
    moved = not kept and string.format('%d', expiry)
    text = 'counter:' .. window_ms .. string.format(':%d:%d:%d', at, previous, current)
  end
end
local reset = used > 0 and counter_wait(now_ms, 0, previous, current, start, window, expiry) or 0
local remaining = used < limit and limit - used or 0
-- [end]

-- [shared: store]
if text == '' then
  redis.call('UNLINK', key)
elseif moved then
  redis.call('SET', key, text)
  redis.call('PEXPIREAT', key, moved)
elseif text then
  redis.call('SET', key, text, 'KEEPTTL')
end
-- [end]
return {allowed, remaining, retry, reset, now}
