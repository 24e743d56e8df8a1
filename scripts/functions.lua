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
-- Needs      Redis >= 7.0 or Valkey, of 64 bits. A state is the same to a function and to its script: both may be used
--            on one key.

-- The time (us) and the running total of an entry; nil if it is none. Running totals wrap around at 10^14, a
-- hundred times what can be in use, so a difference modulo 10^14 is never ambiguous.
local function log_entry(entry)
  if #entry < 27 then return nil end
  local time, total = tonumber(string.sub(entry, 1, 14), 16), tonumber(string.sub(entry, 15, 26), 16)
  if time then return time, total end
end

-- The place of the first entry after `low` that is later than `cut`, and with which `units` have passed since the
-- running total was `base`, where `used` have passed with the newest; it is so at `high`, if at none before. And its
-- time, nil at `high`. Nothing if what is there is no entry. `guess` is tried first, then growing steps from there.
local function log_search(key, low, high, guess, cut, base, units, used)
  local time, step = nil, 1
  while high - low > 1 do
    guess = math.max(low + 1, math.min(guess, high - 1))
    local moment, total = log_entry(redis.call('LINDEX', key, guess))
    if not total then return nil end
    local passed = (total - base) % 100000000000000
    local found = moment > cut and passed >= units and passed <= used -- before the base it wraps around
    if found then high, time = guess, moment else low = guess end
    local middle = math.floor((low + high) / 2)
    guess = found and math.max(high - step, middle) or math.min(low + step, middle)
    step = step * 2
  end
  return high, time
end

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

local function run_sliding_log(KEYS, ARGV)
  local keys, args = KEYS, ARGV -- globals are dearer
  local operation, cost, limit, window_ms = args[1], args[2], args[3], args[4]
  -- The usual call is told by its shape alone, which is cheap: few digits are within every range.
  local usual = #args == 4 and #keys == 1 and (operation == 'take' or operation == 'peek')
    and #cost < 10 and #limit < 10 and #window_ms < 11
    and cost >= '1' and limit >= '1' and window_ms >= '1'
    and string.find(cost .. limit .. window_ms, '^%d+$')
  if not usual then
    local names = {'cost', 'limit', 'window_ms', 'receipt'}
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
  end
  cost, limit, window_ms = cost + 0, limit + 0, window_ms + 0
  local receipt = operation == 'settle' and args[5] + 0 or 0
  local key, clock = keys[1], redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]

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
  local front = redis.pcall('LRANGE', key, 0, 2)
  local first = front[1]
  if front.err then -- one that failed for another reason (no permission, say) keeps its own error
    return string.find(front.err, '^WRONGTYPE') and redis.error_reply(foreign) or front
  end
  if first then
    local w, u, b
    if #first < 60 then w, u, b = string.match(first, '^log:([1-9]%d*):(%d+):(%d+)$') end
    local last, total = log_entry(redis.call('LINDEX', key, -1))
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
        if time and time <= cut and last > cut then
          local place = log_search(key, 2, redis.call('LLEN', key) - 1, 3, cut, 0, 0, 100000000000000)
          if not place then return redis.error_reply(foreign) end
          dead, oldest = place - 1, redis.call('LINDEX', key, place)
          time, oldest_total = log_entry(oldest)
        end
      end
      local units = tonumber(string.sub(oldest, 27), 16)
      if not oldest_total or not units or time > last then return redis.error_reply(foreign) end
      if time > cut then
        local after = (total - oldest_total) % 100000000000000
        used = math.min(after + units, (total - b) % 100000000000000)
        -- With the newest entry its units count. One that says otherwise, or a base of more digits, is none of ours.
        if used < 1 or #b > 14 then return redis.error_reply(foreign) end
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

  -- The oldest entry is tried first, then a guess by proportion, which is right where costs are alike. `place` is the
  -- entry's, and its time is `time`.
  local place, time = dead + 1, first_time
  if passing and passing > first_passed then
    local high = redis.call('LLEN', key) - 1
    local guess = place + math.ceil((high - place) * passing / used)
    place, time = log_search(key, place, high, guess, 0, base, passing, used)
    time = time or newest
    if not place or time < first_time or time > newest then return redis.error_reply(foreign) end
  end
  if allowed == 0 and passing then retry = time + window - now end

  -- `clear`: what is there counts no more; `entry`: one to be added; `text`: the header as it is to be; `moved`: the
  -- key's expiry (ms), where its own won't do.
  local clear, entry, text, moved
  if charge > 0 or refund > 0 then
    clear = first and not header or refund == used and charge == 0
    if refund > 0 then dead = place - 1 end
    base, used = base + refund, used - refund
    if charge > 0 then
      newest, used = at, used + charge
      entry = string.format('%014x%012x%x', at, (base + used) % 100000000000000, charge)
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

  if clear then
    redis.call('UNLINK', key)
    dead = 0
  end
  if entry and not header then
    redis.call('RPUSH', key, text, entry)
  elseif entry then
    redis.call('RPUSH', key, entry)
  end
  if dead > 0 and (entry or text) then -- only so many that no call holds up the server
    redis.call('LTRIM', key, math.min(dead, 100) + 1, -1)
    redis.call('LPUSH', key, text or header)
  elseif header and text and text ~= header then
    redis.call('LSET', key, 0, text)
  end
  if moved then redis.call('PEXPIREAT', key, moved) end
  return {allowed, remaining, retry, reset, now}
end

local function run_sliding_counter(KEYS, ARGV)
  local keys, args = KEYS, ARGV -- globals are dearer
  local operation, cost, limit, window_ms = args[1], args[2], args[3], args[4]
  -- The usual call is told by its shape alone, which is cheap: few digits are within every range.
  local usual = #args == 4 and #keys == 1 and (operation == 'take' or operation == 'peek')
    and #cost < 10 and #limit < 10 and #window_ms < 11
    and cost >= '1' and limit >= '1' and window_ms >= '1'
    and string.find(cost .. limit .. window_ms, '^%d+$')
  if not usual then
    local names = {'cost', 'limit', 'window_ms', 'receipt'}
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
  end
  cost, limit = cost + 0, limit + 0
  local receipt = operation == 'settle' and args[5] + 0 or 0
  local key, clock = keys[1], redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]

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

  if text == '' then
    redis.call('UNLINK', key)
  elseif moved then
    redis.call('SET', key, text)
    redis.call('PEXPIREAT', key, moved)
  elseif text then
    redis.call('SET', key, text, 'KEEPTTL')
  end
  return {allowed, remaining, retry, reset, now}
end

local function run_token_bucket(KEYS, ARGV)
  local keys, args = KEYS, ARGV -- globals are dearer
  local operation, cost, capacity, refill, period_ms = args[1], args[2], args[3], args[4], args[5]
  -- The usual call is told by its shape alone, which is cheap: few digits are within every range.
  local usual = #args == 5 and #keys == 1 and (operation == 'take' or operation == 'peek')
    and #cost < 10 and #capacity < 10 and #refill < 10 and #period_ms < 11
    and cost >= '1' and capacity >= '1' and refill >= '1' and period_ms >= '1'
    and string.find(cost .. capacity .. refill .. period_ms, '^%d+$')
  if not usual then
    local names = {'cost', 'capacity', 'refill', 'period_ms', 'receipt'}
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
  end
  cost, capacity, refill = cost + 0, capacity + 0, refill + 0
  local receipt = operation == 'settle' and args[6] + 0 or 0
  local key, clock = keys[1], redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]

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

  if text == '' then
    redis.call('UNLINK', key)
  elseif moved then
    redis.call('SET', key, text)
    redis.call('PEXPIREAT', key, moved)
  elseif text then
    redis.call('SET', key, text, 'KEEPTTL')
  end
  return {allowed, remaining, retry, reset, now}
end

-- Decides the limit whose arguments come after `before`: the numbers of its reply, and what its state is to be. The
-- algorithms are not functions of their own, which would be made at each call.
local function decide(now, key, args, operation, before)
  local algorithm, cost, receipt = args[before + 1], args[before + 2] + 0, 0
  if algorithm == 'sliding_log' then
    local limit, window_ms = args[before + 3] + 0, args[before + 4] + 0
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
    local front = redis.pcall('LRANGE', key, 0, 2)
    local first = front[1]
    if front.err then -- one that failed for another reason (no permission, say) keeps its own error
      return string.find(front.err, '^WRONGTYPE') and redis.error_reply(foreign) or front
    end
    if first then
      local w, u, b
      if #first < 60 then w, u, b = string.match(first, '^log:([1-9]%d*):(%d+):(%d+)$') end
      local last, total = log_entry(redis.call('LINDEX', key, -1))
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
          if time and time <= cut and last > cut then
            local place = log_search(key, 2, redis.call('LLEN', key) - 1, 3, cut, 0, 0, 100000000000000)
            if not place then return redis.error_reply(foreign) end
            dead, oldest = place - 1, redis.call('LINDEX', key, place)
            time, oldest_total = log_entry(oldest)
          end
        end
        local units = tonumber(string.sub(oldest, 27), 16)
        if not oldest_total or not units or time > last then return redis.error_reply(foreign) end
        if time > cut then
          local after = (total - oldest_total) % 100000000000000
          used = math.min(after + units, (total - b) % 100000000000000)
          -- With the newest entry its units count. One that says otherwise, or a base of more digits, is none of ours.
          if used < 1 or #b > 14 then return redis.error_reply(foreign) end
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

    -- The oldest entry is tried first, then a guess by proportion, which is right where costs are alike. `place` is the
    -- entry's, and its time is `time`.
    local place, time = dead + 1, first_time
    if passing and passing > first_passed then
      local high = redis.call('LLEN', key) - 1
      local guess = place + math.ceil((high - place) * passing / used)
      place, time = log_search(key, place, high, guess, 0, base, passing, used)
      time = time or newest
      if not place or time < first_time or time > newest then return redis.error_reply(foreign) end
    end
    if allowed == 0 and passing then retry = time + window - now end

    -- `clear`: what is there counts no more; `entry`: one to be added; `text`: the header as it is to be; `moved`: the
    -- key's expiry (ms), where its own won't do.
    local clear, entry, text, moved
    if charge > 0 or refund > 0 then
      clear = first and not header or refund == used and charge == 0
      if refund > 0 then dead = place - 1 end
      base, used = base + refund, used - refund
      if charge > 0 then
        newest, used = at, used + charge
        entry = string.format('%014x%012x%x', at, (base + used) % 100000000000000, charge)
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
    return allowed, remaining, retry, reset, text, moved, clear, entry, header, dead
  end
  if algorithm == 'sliding_counter' then
    local limit, window_ms = args[before + 3] + 0, args[before + 4]
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
    return allowed, remaining, retry, reset, text, moved
  end
  local capacity, refill, period_ms = args[before + 3] + 0, args[before + 4] + 0, args[before + 5]
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
  return allowed, remaining, retry, reset, text, moved
end

local function run_multi(KEYS, ARGV)
  local keys, args = KEYS, ARGV -- globals are dearer
  local operation, count = args[1], #keys
  local different = count >= 1 and count <= 16
  for i = 2, different and count or 0 do
    for j = 1, i - 1 do
      if keys[i] == keys[j] then different = false end
    end
  end
  if not different then return redis.error_reply('SLUICEARG KEYS must be 1 to 16 different keys') end
  if operation ~= 'take' and operation ~= 'peek' then
    return redis.error_reply('SLUICEARG operation must be take or peek')
  end

  -- Every argument is checked before any key is read.
  local last = 1 -- argument of the limit before
  for i = 1, count do
    local algorithm, cost, limit = args[last + 1], args[last + 2], args[last + 3]
    local numbers = algorithm == 'token_bucket' and 4 or 3
    if numbers == 3 and algorithm and algorithm ~= 'sliding_log' and algorithm ~= 'sliding_counter' then
      local what = 'sliding_log, sliding_counter or token_bucket'
      return redis.error_reply('SLUICEARG algorithm of limit ' .. i .. ' must be ' .. what)
    end
    last = last + 1 + numbers
    local refill, window = args[last - 1], args[last]
    if not window then break end
    -- As in the scripts for one limit, the usual one is told by its shape alone.
    local usual = #cost < 10 and #limit < 10 and #refill < 10 and #window < 11
      and cost >= '1' and limit >= '1' and refill >= '1' and window >= '1'
      and string.find(cost .. limit .. refill .. window, '^%d+$')
    if not usual then
      local names = numbers == 4 and {'cost', 'capacity', 'refill', 'period_ms'} or {'cost', 'limit', 'window_ms'}
      for n, name in ipairs(names) do
        local least, most = name == 'cost' and 0 or 1, n == numbers and 31622400000 or 1000000000 -- 366 days
        local text = args[last - numbers + n]
        local number = #text < 12 and (text == '0' or string.find(text, '^[1-9]%d*$')) and text + 0
        if not number or number < least or number > most then
          return redis.error_reply(
            string.format('SLUICEARG %s of limit %d must be an integer from %d to %d', name, i, least, most)
          )
        end
      end
    end
  end
  if #args ~= last then
    local what = 'an operation, then an algorithm, a cost and a policy for each key'
    return redis.error_reply('SLUICEARG ARGV must be ' .. what)
  end

  local clock = redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]

  local reply = {1, 0, unpack(args, 2)} -- which makes room for the numbers of the limits, at once

  -- Decides limit i and, with all before it decided, those after it; then writes its state, if all are admitted. Returns
  -- an error, or nothing.
  local function run(i, before)
    local key = keys[i]
    local allowed, remaining, retry, reset, text, moved, clear, entry, header, dead =
      decide(now, key, args, operation, before)
    if allowed == 0 then
      reply[1] = 0
      reply[2] = retry ~= -1 and reply[2] ~= -1 and math.max(reply[2], retry) or -1
    elseif allowed ~= 1 then
      local problem = string.gsub(allowed.err, '^(SLUICEARG %S+)', '%1 of limit ' .. i)
      return redis.error_reply((string.gsub(problem, '^SLUICESTATE KEYS%[1%]', 'SLUICESTATE KEYS[' .. i .. ']')))
    end
    if i < count then
      local problem = run(i + 1, before + (args[before + 1] == 'token_bucket' and 5 or 4))
      if problem then return problem end
    end
    if reply[1] == 1 then
      if entry then
        if clear then
          redis.call('UNLINK', key)
          dead = 0
        end
        if entry and not header then
          redis.call('RPUSH', key, text, entry)
        elseif entry then
          redis.call('RPUSH', key, entry)
        end
        if dead > 0 and (entry or text) then -- only so many that no call holds up the server
          redis.call('LTRIM', key, math.min(dead, 100) + 1, -1)
          redis.call('LPUSH', key, text or header)
        elseif header and text and text ~= header then
          redis.call('LSET', key, 0, text)
        end
        if moved then redis.call('PEXPIREAT', key, moved) end
      else
        if text == '' then
          redis.call('UNLINK', key)
        elseif moved then
          redis.call('SET', key, text)
          redis.call('PEXPIREAT', key, moved)
        elseif text then
          redis.call('SET', key, text, 'KEEPTTL')
        end
      end
    elseif allowed == 1 and operation == 'take' then -- not charged after all, so as it is
      allowed, remaining, retry, reset = decide(now, key, args, 'peek', before)
    end
    local n = 5 * i - 2
    reply[n], reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = allowed, remaining, retry, reset, now
  end

  return run(1, 1) or reply
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
  callback = function() return {1, '747b74ab803621d9c3720b670b90e5b29acf900b'} end,
}
