-- Sluice token bucket: `capacity` tokens, refilled continuously, fractions kept.
--
-- KEYS[1]  the state of one limit                   sluice:{<subject digest>}:<policy>
-- ARGV[1]  operation   take | peek | settle
-- ARGV[2]  cost        tokens. take, peek: 0 to 10^9. settle: actual - charged, -10^9 to 10^9
-- ARGV[3]  capacity    tokens, 1 to 10^9
-- ARGV[4]  refill      tokens per period, 1 to 10^9
-- ARGV[5]  period_ms   milliseconds, 1 to 31622400000 (366 days)
-- ARGV[6]  receipt     settle only: reply[5] of the take being settled, 0 = none
--          All are decimal integers in their shortest form: no leading zeros, no plus.
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
-- Needs    Redis >= 6.0 or Valkey, of 64 bits. Commands: TIME, GET, SET, PEXPIREAT, UNLINK.
--          No key but KEYS[1] is touched.
--
-- State    a string, "bucket:<period_ms>:<until>:<last>:<deficit>:<fraction>": at `last` (us) the bucket lacked
--          deficit + fraction / (1000 * period_ms) tokens; the key expires at `until` (ms).

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

-- [main]
local keys, args = KEYS, ARGV -- globals are dearer
local operation, cost, capacity, refill, period_ms = args[1], args[2], args[3], args[4], args[5]
-- The usual call is told by its shape alone, which is cheap: few digits are within every range.
local usual = #args == 5 and #keys == 1 and (operation == 'take' or operation == 'peek')
  and #cost < 10 and #capacity < 10 and #refill < 10 and #period_ms < 11
  and cost >= '1' and capacity >= '1' and refill >= '1' and period_ms >= '1'
  and string.find(cost .. capacity .. refill .. period_ms, '^%d+$')
if not usual then
  local names = {'cost', 'capacity', 'refill', 'period_ms', 'receipt'}
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
cost, capacity, refill = cost + 0, capacity + 0, refill + 0
local receipt = operation == 'settle' and args[6] + 0 or 0
local key, clock = keys[1], redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- [algorithm: token_bucket]
-- Decides one call at the server time `now` (us): the numbers of its reply, and what the state is to be.
local period = period_ms * 1000
-- The time in us from empty to full, rounded up. It is worked out only where it matters, and near its bound.
local fill
if capacity * period > refill * 31622000000000 then
  fill = muldiv(capacity, period, refill - 1, refill)
  if fill > 31622400000000 then
    return redis.error_reply('SLUICEARG period_ms must be short enough to fill the bucket within 31622400000 ms')
  end
end

local deficit, fraction = 0, 0 -- what the bucket lacks at `at`: deficit + fraction / period tokens
local at, expiry, until_text = now, nil, nil -- expiry: of a state that counts
local state = redis.pcall('GET', key)
if state then
  local failed = state.err -- none of a string
  local p, u, last, d, f
  if not failed and #state < 90 then
    p, u, last, d, f = string.match(state, '^bucket:(%d+):([1-9]%d*):(%d+):(%d+):(%d+)$')
  end
  local its_period, ends
  if p then
    its_period = p == period_ms and period or p * 1000
    ends, last, d, f = u + 0, last + 0, d + 0, f + 0
  end
  -- Nor is it ours if the numbers are none that this script writes.
  if not p or d > 2000000000 or f >= its_period or ends * 1000 - last > 63244800000000 then
    if failed and not string.find(failed, '^WRONGTYPE') then return state end
    return redis.error_reply('SLUICESTATE KEYS[1] holds something that is not a token bucket')
  end
  local counts = now < ends * 1000
  if last > now then -- from the future: it stands still for up to one fill time, and is discarded beyond
    fill = fill or muldiv(capacity, period, refill - 1, refill)
    counts = counts and last - now <= fill
    at = counts and last or now
  end
  if counts then
    deficit, fraction, expiry, until_text = d, f, ends, u
    if f > 0 and its_period ~= period then -- of another period: round up to a whole token
      deficit, fraction = d + 1, 0
    end
    local tokens, rest = muldiv(at - last, refill, 0, period)
    deficit, fraction = deficit - tokens, fraction - rest
    if fraction < 0 then deficit, fraction = deficit - 1, fraction + period end
    if deficit < 0 then deficit, fraction = 0, 0 end
  end
end

local used = fraction > 0 and deficit + 1 or deficit
local allowed, retry, change = 1, 0, 0 -- retry: in us, from `at`
if operation == 'settle' then
  fill = fill or muldiv(capacity, period, refill - 1, refill)
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
    retry = at + muldiv(deficit + cost - capacity, period, fraction + refill - 1, refill) - now
  end
end

if change ~= 0 then
  deficit = deficit + change
  if deficit < 0 then deficit, fraction = 0, 0 end
  used = fraction > 0 and deficit + 1 or deficit
end
-- `text`: the state to be written, '' for none any more; `moved`: the key's expiry (ms), where its own won't do.
local reset, text, moved = 0, change ~= 0 and '', nil
if used > 0 then
  reset = at + muldiv(deficit, period, fraction + refill - 1, refill) - now
  if text then
    fill = fill or muldiv(capacity, period, refill - 1, refill)
    local need = (at + fill > now + reset and at + fill or now + reset) + 999
    need = (need - need % 1000) / 1000
    local now_ms, most = (now - now % 1000) / 1000, fill + 999
    most = now_ms + (most - most % 1000) / 500
    if not expiry or expiry < need or expiry > most then
      expiry = math.min(math.max(need, most), now_ms + 63244800000)
      moved = string.format('%d', expiry)
    end
    text = 'bucket:' .. period_ms .. ':' .. (moved or until_text)
      .. string.format(':%d:%d:%d', at, deficit, fraction)
  end
  -- No wait is longer than the state is known.
  local known = expiry * 1000 - now
  reset = (reset < known and reset or known) + 999
  reset = (reset - reset % 1000) / 1000
  if retry > 0 then
    retry = (retry < known and retry or known) + 999
    retry = (retry - retry % 1000) / 1000
  end
end
local remaining = used < capacity and capacity - used or 0
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
