#!lua name=sluice
-- Sluice as a library of Redis Functions. Made of the scripts beside it by conformance/cmd/functions: do not edit.
--
-- FUNCTION LOAD REPLACE puts it on a server, once. It is stored and replicated with the data, so it is there after a
-- restart and a failover, and there is no NOSCRIPT.
--
-- Functions  sluice_v1_sliding_log, sluice_v1_sliding_counter, sluice_v1_token_bucket, sluice_v1_multi: what the scripts
--            of these names do. Keys, arguments, reply and errors are told in their files.
--            sluice_v1_sliding_log_peek and so on: the same for the operation peek alone. They write nothing, so
--            FCALL_RO takes them, on a replica too.
--            sluice_version: {version, digest}. The version grows with every release that changes the library, and is in
--            the functions' names; a later library has the earlier names too, as long as it does the same. The digest
--            is the SHA-1 of this text with 40 zeros in the place of the digest.
-- Needs      Redis >= 7.0 or Valkey. A state is the same to a function and to its script: both may be used on one key.

-- The error for the first argument that is not as it must be, or nil. `names`: from ARGV[2] on, the receipt last.
local function refusal(KEYS, ARGV, names)
  local function must_be(argument, what)
    return redis.error_reply('SLUICEARG ' .. argument .. ' must be ' .. what)
  end
  local settles = ARGV[1] == 'settle'
  if #KEYS ~= 1 then return must_be('KEYS', 'one key') end
  if not settles and ARGV[1] ~= 'take' and ARGV[1] ~= 'peek' then
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
end

-- The error for a key that holds something else. A read that failed for another reason (no permission, say) keeps its
-- own error.
local function log_foreign(front, what)
  if front.err and not string.find(front.err, '^WRONGTYPE') then return front end
  return redis.error_reply('SLUICESTATE KEYS[1] holds something that is not a sliding log' .. (what or ''))
end

-- The time (us) and the running total of an entry; nil if the member is none. Running totals wrap around at 10^15, a
-- thousand times what can be in use, so a difference modulo 10^15 is never ambiguous.
local function log_entry(member)
  if #member < 28 then return nil end
  local time, total = tonumber(string.sub(member, 1, 14), 16), tonumber(string.sub(member, 15, 27), 16)
  if time then return time, total end
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
    if not total then return nil end
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
  if front.err then return log_foreign(front) end
  if first then
    local w, u, b
    if #first < 60 then w, u, b = string.match(first, '^log:([1-9]%d*):(%d+):(%d+)$') end
    local last, total = log_entry(redis.call('ZRANGE', key, -1, -1)[1])
    local oldest = front[2] or ''
    local time, oldest_total = log_entry(oldest)
    if not w or not total or not oldest_total then return log_foreign(front) end
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
      local units = tonumber(string.sub(oldest, 28), 16)
      if not oldest_total or not units then return log_foreign(front) end
      if time > cut then
        used = math.min((total - oldest_total) % 1000000000000000 + units, (total - b) % 1000000000000000)
        base, newest = total - used, last
        header, header_window, expiry = first, w + 0, u + 0
      end
    end
  end

  local allowed, retry, charge, refund = 1, 0, 0, 0 -- retry: in us
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
      if not time then return log_foreign(front) end
      retry = time + window - now
    end
  end

  local clear, stamp, member, text, moved
  if charge > 0 or refund > 0 then
    clear = first and not header or refund == used and charge == 0
    if refund > 0 and not clear then
      local time, rank = log_passing(key, base, used, refund + 1, dead, newest)
      if not time then return log_foreign(front) end
      dead = rank - 1
    end
    base, used = base + refund, used - refund
    if charge > 0 then
      local total = base + used + charge
      -- Not within one microsecond, where the totals give the order: there is room for 3 * 10^15 more.
      if total >= 1000000000000000 and at ~= newest then
        base, total = base - 1000000000000000, total - 1000000000000000
      end
      if total >= 4500000000000000 then return log_foreign(front, ' with room in this microsecond') end
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

-- Writes what was decided: a state, or none any more (''); `expiry` (ms) where the key's own is not right.
local function store(key, text, expiry)
  if text == '' then
    redis.call('UNLINK', key)
  elseif not expiry then
    redis.call('SET', key, text, 'KEEPTTL')
  else
    redis.call('SET', key, text)
    redis.call('PEXPIREAT', key, string.format('%d', expiry))
  end
end

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

-- Decides one call at the server time `now` (us) and writes nothing. Returns the reply, or an error; then what `store`
-- takes.
local function sliding_counter(now, key, operation, cost, receipt, limit, window)
  local now_ms = (now - now % 1000) / 1000

  local previous, current = 0, 0
  local at, expiry = now_ms, nil -- expiry: of a state that counts
  local kept = false -- whether the key's expiry is already that of the window of `at`
  local elapsed, start -- of `at` in its window
  local state = redis.pcall('GET', key)
  if state then
    local failed = type(state) == 'table'
    local w, last, p, c
    if not failed and #state < 90 then
      w, last, p, c = string.match(state, '^counter:(%d+):(%d+):(%d+):(%d+)$')
    end
    -- Nor is it ours if the numbers are none that this script writes.
    if not w or w + 0 < 1 or w + 0 > 31622400000 or p + 0 > 1000000000000 or c + 0 > 1000000000000 then
      if failed and not string.find(state.err, '^WRONGTYPE') then return state end
      return redis.error_reply('SLUICESTATE KEYS[1] holds something that is not a sliding counter')
    end
    w, last = w + 0, last + 0
    local began = last - last % w
    -- A state from the future stands still for up to one window, and is discarded beyond.
    if now_ms < began + 2 * w and last - now_ms <= window then
      expiry = began + 2 * w
      if last > at then at = last end
      if w ~= window then -- all that the old window knew counts as charged at `last`, rounded up
        c = math.min(c + muldiv(p + 0, w - (last - began), w - 1, w), 1000000000000)
        p, began = 0, last - last % window
      end
      elapsed = at % window
      start = at - elapsed
      if start == began then
        previous, current, kept = p + 0, c + 0, w == window
      elseif start == began + window then
        previous = c + 0
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

  local text, moved
  if from_previous ~= 0 or from_current ~= 0 then
    previous, current = previous + from_previous, current + from_current
    used = current + muldiv(previous, window - elapsed, 0, window)
    if previous == 0 and current == 0 then
      text = ''
    else
      expiry = start + 2 * window
      moved = not kept and expiry
      text = string.format('counter:%d:%d:%d:%d', window, at, previous, current)
    end
  end
  local reset = used > 0 and counter_wait(now_ms, 0, previous, current, start, window, expiry) or 0
  return {allowed, used < limit and limit - used or 0, retry, reset, now}, text, moved
end

-- Decides one call at the server time `now` (us) and writes nothing. Returns the reply, or an error; then what `store`
-- takes.
local function token_bucket(now, key, operation, cost, receipt, capacity, refill, period_ms)
  local period = period_ms * 1000
  -- The time in us from empty to full, rounded up. It is worked out only where it matters, and near its bound.
  local fill
  if capacity * period_ms > refill * 31622000000 then
    fill = muldiv(capacity, period, refill - 1, refill)
    if fill > 31622400000000 then
      return redis.error_reply('SLUICEARG period_ms must be short enough to fill the bucket within 31622400000 ms')
    end
  end

  local deficit, fraction = 0, 0 -- what the bucket lacks at `at`: deficit + fraction / period tokens
  local at, expiry = now, nil -- expiry: of a state that counts
  local state = redis.pcall('GET', key)
  if state then
    local failed = type(state) == 'table'
    local p, u, last, d, f
    if not failed and #state < 90 then
      p, u, last, d, f = string.match(state, '^bucket:(%d+):(%d+):(%d+):(%d+):(%d+)$')
    end
    -- Nor is it ours if the numbers are none that this script writes.
    if not p or d + 0 > 2000000000 or f + 0 >= p * 1000 or u * 1000 - last > 63244800000000 then
      if failed and not string.find(state.err, '^WRONGTYPE') then return state end
      return redis.error_reply('SLUICESTATE KEYS[1] holds something that is not a token bucket')
    end
    last = last + 0
    local counts = now < u * 1000
    if last > now then -- from the future: it stands still for up to one fill time, and is discarded beyond
      fill = fill or muldiv(capacity, period, refill - 1, refill)
      counts = counts and last - now <= fill
      at = counts and last or now
    end
    if counts then
      deficit, fraction, expiry = d + 0, f + 0, u + 0
      if fraction > 0 and p + 0 ~= period_ms then -- of another period: round up to a whole token
        deficit, fraction = deficit + 1, 0
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

  local text, moved
  if change ~= 0 then
    deficit = deficit + change
    if deficit < 0 then deficit, fraction = 0, 0 end
    used = fraction > 0 and deficit + 1 or deficit
    if used == 0 then text = '' end
  end
  if used == 0 then return {allowed, capacity, retry, 0, now}, text end

  local reset = at + muldiv(deficit, period, fraction + refill - 1, refill) - now
  if change ~= 0 then
    fill = fill or muldiv(capacity, period, refill - 1, refill)
    local now_ms = (now - now % 1000) / 1000
    local need = math.ceil((now + math.max(reset, at - now + fill)) / 1000)
    local most = now_ms + 2 * math.ceil(fill / 1000)
    if not expiry or expiry < need or expiry > most then
      expiry = math.min(math.max(need, most), now_ms + 63244800000)
      moved = expiry
    end
    text = string.format('bucket:%d:%d:%d:%d:%d', period_ms, expiry, at, deficit, fraction)
  end
  -- No wait is longer than the state is known.
  local known = expiry * 1000 - now
  reset = (reset < known and reset or known) + 999
  reset = (reset - reset % 1000) / 1000
  if retry > 0 then
    retry = (retry < known and retry or known) + 999
    retry = (retry - retry % 1000) / 1000
  end
  return {allowed, used < capacity and capacity - used or 0, retry, reset, now}, text, moved
end

local function run_sliding_log(KEYS, ARGV)
  local operation, cost, limit, window_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
  -- The usual call is told by its shape alone, which is cheap: few digits are within every range.
  local usual = #ARGV == 4 and #KEYS == 1 and (operation == 'take' or operation == 'peek')
    and #cost < 10 and #limit < 10 and #window_ms < 11
    and string.find(cost .. ' ' .. limit .. ' ' .. window_ms, '^[1-9]%d* [1-9]%d* [1-9]%d*$')
  if not usual then
    local problem = refusal(KEYS, ARGV, {'cost', 'limit', 'window_ms', 'receipt'})
    if problem then return problem end
  end
  cost, limit, window_ms = cost + 0, limit + 0, window_ms + 0
  local receipt = operation == 'settle' and ARGV[5] + 0 or 0
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local reply, clear, stamp, member, text, header, expiry, dead =
    sliding_log(now, KEYS[1], operation, cost, receipt, limit, window_ms)
  if clear or member or text then log_store(KEYS[1], clear, stamp, member, text, header, expiry, dead) end
  return reply
end

local function run_sliding_counter(KEYS, ARGV)
  local operation, cost, limit, window_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
  -- The usual call is told by its shape alone, which is cheap: few digits are within every range.
  local usual = #ARGV == 4 and #KEYS == 1 and (operation == 'take' or operation == 'peek')
    and #cost < 10 and #limit < 10 and #window_ms < 11
    and string.find(cost .. ' ' .. limit .. ' ' .. window_ms, '^[1-9]%d* [1-9]%d* [1-9]%d*$')
  if not usual then
    local problem = refusal(KEYS, ARGV, {'cost', 'limit', 'window_ms', 'receipt'})
    if problem then return problem end
  end
  cost, limit, window_ms = cost + 0, limit + 0, window_ms + 0
  local receipt = operation == 'settle' and ARGV[5] + 0 or 0
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local reply, text, expiry = sliding_counter(now, KEYS[1], operation, cost, receipt, limit, window_ms)
  if text then store(KEYS[1], text, expiry) end
  return reply
end

local function run_token_bucket(KEYS, ARGV)
  local operation, cost, capacity, refill, period_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
  -- The usual call is told by its shape alone, which is cheap: few digits are within every range.
  local usual = #ARGV == 5 and #KEYS == 1 and (operation == 'take' or operation == 'peek')
    and #cost < 10 and #capacity < 10 and #refill < 10 and #period_ms < 11
    and string.find(cost .. ' ' .. capacity .. ' ' .. refill .. ' ' .. period_ms, '^[1-9]%d* [1-9]%d* [1-9]%d* [1-9]%d*$')
  if not usual then
    local problem = refusal(KEYS, ARGV, {'cost', 'capacity', 'refill', 'period_ms', 'receipt'})
    if problem then return problem end
  end
  cost, capacity, refill, period_ms = cost + 0, capacity + 0, refill + 0, period_ms + 0
  local receipt = operation == 'settle' and ARGV[6] + 0 or 0
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local reply, text, expiry = token_bucket(now, KEYS[1], operation, cost, receipt, capacity, refill, period_ms)
  if text then store(KEYS[1], text, expiry) end
  return reply
end

local function run_multi(KEYS, ARGV)
  local function must_be(argument, limit, what)
    if limit then argument = argument .. ' of limit ' .. limit end
    return redis.error_reply('SLUICEARG ' .. argument .. ' must be ' .. what)
  end
  local operation, count, seen = ARGV[1], #KEYS, {}
  for _, key in ipairs(KEYS) do
    if seen[key] then count = 0 end
    seen[key] = true
  end
  if count < 1 or count > 16 then return must_be('KEYS', nil, '1 to 16 different keys') end
  if operation ~= 'take' and operation ~= 'peek' then return must_be('operation', nil, 'take or peek') end

  -- Every argument is checked before any key is read.
  local limits, from = {}, 2
  for i = 1, count do
    local algorithm = ARGV[from]
    local names
    if algorithm == 'token_bucket' then
      names = {'cost', 'capacity', 'refill', 'period_ms'}
    elseif algorithm == 'sliding_log' or algorithm == 'sliding_counter' then
      names = {'cost', 'limit', 'window_ms'}
    elseif algorithm then
      return must_be('algorithm', i, 'sliding_log, sliding_counter or token_bucket')
    end
    if #ARGV < from + (names and #names or 0) then break end
    local limit = {algorithm}
    for n, name in ipairs(names) do
      local least, most = name == 'cost' and 0 or 1, 1000000000
      if name == 'window_ms' or name == 'period_ms' then most = 31622400000 end -- 366 days
      local text = ARGV[from + n]
      local number = #text < 12 and (text == '0' or string.find(text, '^[1-9]%d*$')) and text + 0
      if not number or number < least or number > most then
        return must_be(name, i, string.format('an integer from %d to %d', least, most))
      end
      limit[n + 1] = number
    end
    limits[i] = limit
    from = from + #names + 1
  end
  if #limits < count or #ARGV ~= from - 1 then
    return must_be('ARGV', nil, 'an operation, then an algorithm, a cost and a policy for each key')
  end

  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]

  -- One limit's reply or error, then what is to be written.
  local function decide(i, op)
    local algorithm, cost, a, b, c = unpack(limits[i])
    if algorithm == 'sliding_log' then return sliding_log(now, KEYS[i], op, cost, 0, a, b) end
    if algorithm == 'sliding_counter' then return sliding_counter(now, KEYS[i], op, cost, 0, a, b) end
    return token_bucket(now, KEYS[i], op, cost, 0, a, b, c)
  end

  local decided = {}
  local allowed, retry = 1, 0
  for i = 1, count do
    local decision = {decide(i, operation)}
    local reply = decision[1]
    if reply.err then
      local problem = string.gsub(reply.err, '^(SLUICEARG %S+)', '%1 of limit ' .. i)
      return redis.error_reply((string.gsub(problem, '^SLUICESTATE KEYS%[1%]', 'SLUICESTATE KEYS[' .. i .. ']')))
    end
    if reply[1] == 0 then
      allowed = 0
      if reply[3] == -1 or retry == -1 then retry = -1 else retry = math.max(retry, reply[3]) end
    end
    decided[i] = decision
  end

  local replies = {allowed, retry}
  for i = 1, count do
    local decision = decided[i]
    local reply = decision[1]
    if operation == 'take' and allowed == 1 then
      if limits[i][1] == 'sliding_log' then
        log_store(KEYS[i], unpack(decision, 2, 8))
      elseif decision[2] then
        store(KEYS[i], decision[2], decision[3])
      end
    elseif operation == 'take' and reply[1] == 1 then
      reply = decide(i, 'peek') -- not charged after all, so as it is
    end
    for n = 1, 5 do replies[2 + 5 * (i - 1) + n] = reply[n] end
  end
  return replies
end

local function register(name, run)
  redis.register_function('sluice_v1_' .. name, run)
  redis.register_function{
    function_name = 'sluice_v1_' .. name .. '_peek',
    flags = {'no-writes'},
    callback = function(keys, args)
      if args[1] ~= 'peek' then return redis.error_reply('SLUICEARG operation must be peek') end
      return run(keys, args)
    end,
  }
end

register('sliding_log', run_sliding_log)
register('sliding_counter', run_sliding_counter)
register('token_bucket', run_token_bucket)
register('multi', run_multi)
redis.register_function{
  function_name = 'sluice_version',
  flags = {'no-writes'},
  callback = function() return {1, '97793a3cb1cc4515bc9eb09dd4a03a3596041983'} end,
}
