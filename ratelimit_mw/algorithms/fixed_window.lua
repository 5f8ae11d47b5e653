-- The twin of fixed_window.py. State: end of the window, count, time of its first hit.

local FixedWindow = {fields = 3}
FixedWindow.__index = FixedWindow

function FixedWindow:decide(state, now, cost)
  local ends, count, began
  if state and now < state[1] then
    ends, count, began = state[1], state[2], state[3]
  else
    ends, count, began = now - now % self.alignment + self.period, 0, now
  end
  -- When the clock goes back, the latest window stays the current one.
  local at = now >= ends - self.period and now or ends - self.period
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
    return {state[1], state[2] + cost, min(state[3], max(now, state[1] - self.period))}
  end
  return {now - now % self.alignment + self.period, cost, now}
end

function FixedWindow:refund(state, now, consumed, cost)
  if not state or state[1] <= consumed.at or consumed.at < state[3] then return state end
  return state[2] > cost and {state[1], state[2] - cost, state[3]} or nil
end
