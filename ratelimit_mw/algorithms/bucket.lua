-- The twin of bucket.py. State: time, cost consumed, part of a cost in units of 1/P, time of the first hit.

local Bucket = {fields = 4, delays = false}
Bucket.__index = Bucket

function Bucket:decide(state, now, cost)
  local at, consumed, part, began = now, 0, 0, now
  if state then at, consumed, part, began = self:drain(state, now) end
  local room = self.limit - consumed - (part > 0 and 1 or 0)
  if cost == 0 then
    return state, true, max(0, room), 0, self:drains_in(consumed, part, at - now), at
  end
  if cost > room then
    local retry = cost <= self.limit and self:drains_in(consumed + cost - self.limit, part, at - now) or nil
    return state, false, max(0, room), retry, self:drains_in(consumed, part, at - now), at
  end
  local delay = self.delays and self:drains_in(consumed, part, 0) or 0
  local reset = self:drains_in(consumed + cost, part, at - now)
  return {at, consumed + cost, part, began}, true, room - cost, 0, reset, at, delay
end

-- Microseconds, rounded up, until consumed + part/P has drained, and later more.
function Bucket:drains_in(consumed, part, later)
  return ceildiv(consumed, self.period, self.amount, part, later)
end

-- The state as of now, or as of its own time when that is later.
function Bucket:drain(state, now)
  local at, consumed, part, began = state[1], state[2], state[3], state[4]
  if now <= at then return at, consumed, part, began end
  local whole, rest = muldiv(now - at, self.amount, self.period)
  consumed = consumed - whole
  part = part - rest
  if part < 0 then
    consumed = consumed - 1
    part = part + self.period
  end
  if consumed >= 0 then return now, consumed, part, began end
  return now, 0, 0, began
end

function Bucket:charge(state, now, cost)
  local at, consumed, part, began = now, 0, 0, now
  if state then at, consumed, part, began = self:drain(state, now) end
  return {at, consumed + cost, part, began}
end

function Bucket:refund(state, now, consumed, cost)
  if not state or consumed.at < state[4] then return state end
  local at, level, part, began = self:drain(state, now)
  -- The part of the cost that has drained since the hit cannot be refunded.
  local whole, rest = muldiv(max(0, at - consumed.at), self.amount, self.period)
  if cost <= whole then return self:lower(at, level, part, began, 0, 0) end
  return self:lower(at, level, part, began, cost - whole, rest)
end

-- The state with a level lower by (whole - rest/P).
function Bucket:lower(at, level, part, began, whole, rest)
  level = level - whole
  part = part + rest
  if part >= self.period then
    level = level + 1
    part = part - self.period
  end
  if level < 0 or level + part == 0 then return nil end
  return {at, level, part, began}
end

local LeakyBucketQueue = setmetatable({delays = true}, Bucket)
LeakyBucketQueue.__index = LeakyBucketQueue

function LeakyBucketQueue:refund(state, now, consumed, cost)
  if not state or consumed.at < state[4] or not self:is_last(state, consumed) then return state end
  local at, level, part, began = self:drain(state, now)
  return self:lower(at, level, part, began, cost, 0)
end

-- Whether no later departure depends on this hit: 0 <= own - end < N, in units of 1/N microsecond, where own - end is
-- (consumed.at + consumed.delay - at) * N + (consumed.cost - level) * P - part. Solved for the delay, which may be text.
function LeakyBucketQueue:is_last(state, consumed)
  local at, level, part = state[1], state[2], state[3]
  if self.amount > self.period then return false end
  if level >= consumed.cost then
    return consumed.delay == self:drains_in(level - consumed.cost, part, at - consumed.at)
  end
  local ahead = muldiv(consumed.cost - level - 1, self.period, self.amount, self.period - part)
  return consumed.delay == at - consumed.at - ahead
end
