-- The twin of fixed_window.py. State: end of the window, count, time of its first hit.

local FixedWindow = {fields = 3}
FixedWindow.__index = FixedWindow

-- The start and the end of the window of a time. A calendar sends the edges of three windows: no server knows its zone.
function FixedWindow:window(now)
  local bounds = self.bounds
  if not bounds then
    local start = now - now % self.alignment
    return start, start + self.period
  end
  if now < bounds[1] or now >= bounds[4] then error('the clocks of Redis and of this process differ by days', 0) end
  local i = now < bounds[2] and 1 or now < bounds[3] and 2 or 3
  return bounds[i], bounds[i + 1]
end

function FixedWindow:start_of(ends)
  if self.bounds then return ends <= self.bounds[4] and self:window(ends - 1) or self.bounds[3] end
  return ends - self.period
end

function FixedWindow:decide(state, now, cost)
  local ends, count, began
  if state and now < state[1] then
    ends, count, began = state[1], state[2], state[3]
  else
    count, began = 0, now
    ends = select(2, self:window(now))
  end
  -- When the clock goes back, the latest window stays the current one.
  local at = max(now, (self:start_of(ends)))
  local room = self.limit - count
  if cost == 0 or cost > room then
    local retry = 0
    if cost > 0 then retry = cost <= self.limit and ends - now or nil end
    return state, cost == 0, max(0, room), retry, count > 0 and ends - now or 0, at
  end
  return {ends, count + cost, min(at, began)}, true, room - cost, 0, ends - now, at
end

function FixedWindow:charge(state, now, cost)
  if state and now < state[1] then 
    return {state[1], state[2] + cost, min(state[3], max(now, (self:start_of(state[1]))))}
  end
  return {select(2, self:window(now)), cost, now}
end

function FixedWindow:refund(state, now, consumed, cost)
  if not state or state[1] <= consumed.at or consumed.at < state[3] then return state end
  return state[2] > cost and {state[1], state[2] - cost, state[3]} or nil
end
