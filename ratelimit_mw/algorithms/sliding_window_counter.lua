-- The twin of sliding_window_counter.py. State: start of the window, time of the last change, count of the window
-- before it, count of the window, time of the first hit.

local SlidingWindowCounter = {fields = 5}
SlidingWindowCounter.__index = SlidingWindowCounter

function SlidingWindowCounter:decide(state, now, cost)
  local period = self.period
  local start, at, previous, current, began = now - now % period, now, 0, 0, now
  if state then start, at, previous, current, began = self:roll(state, now) end
  local room = self.amount - current
  if previous > 0 then room = room - muldiv(previous, period - 1 - at + start, period) end
  if cost == 0 or cost > room then
    local retry = 0
    if cost > 0 then retry = self:fits_at(start, previous, current, cost, now) end
    local reset = self:fresh_at(start, at, previous, current) - now
    return state, cost == 0, max(0, room), retry, reset, at
  end
  current = current + cost
  -- The state is fresh once its current count, as the previous one, weighs less than 1.
  local reset = start + 2 * period - 1 - floor((period - 1) / current) - now
  return {start, at, previous, current, began}, true, room - cost, 0, reset, at
end

-- Microseconds until cost fits: in this window, else in the next one.
function SlidingWindowCounter:fits_at(start, previous, current, cost, now)
  local room = self.amount - current - cost
  if room >= 0 then return start + self:weighs_at_most(previous, room) - now end
  room = self.amount - cost
  return room >= 0 and start + self.period + self:weighs_at_most(current, room) - now or nil
end

-- The time from which all counts weigh 0.
function SlidingWindowCounter:fresh_at(start, at, previous, current)
  if current > 0 then return start + self.period + self:weighs_at_most(current, 0) end
  return previous > 0 and max(at, start + self:weighs_at_most(previous, 0)) or at
end

-- When in a window the previous one, of count, weighs at most room, less than count.
function SlidingWindowCounter:weighs_at_most(count, room)
  local parts = muldiv(room, self.period, count, self.period - 1)
  return self.period - 1 - parts
end

-- The state as of now, or as of its own time when that is later.
function SlidingWindowCounter:roll(state, now)
  local start, at, previous, current, began = state[1], state[2], state[3], state[4], state[5]
  if now <= at then return start, at, previous, current, began end
  local windows = floor((now - start) / self.period)
  if windows == 0 then return start, now, previous, current, began end
  return start + windows * self.period, now, windows == 1 and current or 0, 0, began
end

function SlidingWindowCounter:charge(state, now, cost)
  local fresh = {now - now % self.period, now, 0, 0, now}
  local start, at, previous, current, began = self:roll(state or fresh, now)
  return {start, at, previous, current + cost, began}
end

function SlidingWindowCounter:refund(state, now, consumed, cost)
  if not state or consumed.at < state[5] then return state end
  local start, at, previous, current, began = state[1], state[2], state[3], state[4], state[5]
  if start <= consumed.at and consumed.at < start + self.period then
    current = max(0, current - cost)
  elseif start - self.period <= consumed.at and consumed.at < start then
    previous = max(0, previous - cost)
  end
  return (previous > 0 or current > 0) and {start, at, previous, current, began} or nil
end
