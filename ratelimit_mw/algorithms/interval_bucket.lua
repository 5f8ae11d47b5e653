-- The twin of interval_bucket.py. State: time of the last refill, tokens consumed since.

local IntervalTokenBucket = {fields = 2}
IntervalTokenBucket.__index = IntervalTokenBucket

function IntervalTokenBucket:decide(state, now, cost)
  local refilled, consumed = self:refill(state, now)
  local room = self.capacity - consumed
  local live = state and refilled == state[1]
  local reset = live and refilled + self.period - now or 0
  local at = max(now, refilled)
  if cost == 0 then return state, true, max(0, room), 0, reset, at end
  if cost > room then
    local retry = cost <= self.capacity and reset or nil
    return state, false, max(0, room), retry, reset, at
  end
  reset = refilled + self.period - now
  return {refilled, consumed + cost}, true, room - cost, 0, reset, at
end

function IntervalTokenBucket:refill(state, now)
  if not state or now - state[1] >= self.period then return now, 0 end
  return state[1], state[2]
end

function IntervalTokenBucket:charge(state, now, cost)
  local refilled, consumed = self:refill(state, now)
  return {refilled, consumed + cost}
end

function IntervalTokenBucket:refund(state, now, consumed, cost)
  if not state or consumed.at < state[1] or consumed.at - state[1] >= self.period then return state end
  return state[2] > cost and {state[1], state[2] - cost} or nil
end
