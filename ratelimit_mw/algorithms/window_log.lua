-- The twin of window_log.py. State: a series, which is a view of rows, oldest first: bucket, running total before it,
-- cost in it. The store of the rows provides row(i), up_to(bucket) and from(i); i counts from 0. A changed view
-- is without the rows before start, and has tail instead of the rows from cut on.

local WRAP = 2^52 -- running totals start again from 0 here; only their differences matter

local Series = {}
Series.__index = Series

local function series(rows, start, stop, base, open, total, cut, tail)
  local view = {rows = rows, start = start, stop = stop, base = base, open = open, total = total, cut = cut, tail = tail}
  view.sum = (total - base) % WRAP
  return setmetatable(view, Series)
end

-- A series without costs.
function Series.empty(rows, bucket)
  return series(rows, 0, 0, 0, bucket, 0)
end

function Series:row(i)
  if not self.cut or i < self.cut then return self.rows:row(i) end
  local row = self.tail[i - self.cut + 1]
  return row[1], row[2], row[3]
end

-- The series without the buckets up to horizon.
function Series:since(horizon)
  if self.open <= horizon then return Series.empty(self.rows, self.open) end
  local start = self.rows:up_to(horizon)
  local _, before = self:row(start)
  return series(self.rows, start, self.stop, before, self.open, self.total)
end

-- The series with cost more in bucket, the open one or a later one.
function Series:added(bucket, cost)
  local last, before, already = self.stop, self.total, 0
  if bucket == self.open and self.sum > 0 then
    last = self.stop - 1
    bucket, before, already = self:row(last)
  end
  local total = (self.total + cost) % WRAP
  return series(self.rows, self.start, last + 1, self.base, bucket, total, last, {{bucket, before, already + cost}})
end

-- The newest rows that together reach cost, of a series that exceeds it.
function Series:newest(cost)
  local start = self:place(self.sum - cost + 1)
  local _, before = self:row(start)
  return series(self.rows, start, self.stop, before, self.open, self.total, self.cut, self.tail)
end

-- The bucket with which the costs reach sum.
function Series:reaching(sum)
  return (self:row(self:place(sum)))
end

function Series:place(sum)
  local low, high = self.start, min(self.stop, self.start + sum) - 1 -- every row holds at least 1
  local _, before = self:row(high)
  if (before - self.base) % WRAP < sum then return high end
  while low < high do
    local middle = floor((low + high) / 2)
    local _, earlier, cost = self:row(middle)
    if (earlier + cost - self.base) % WRAP < sum then low = middle + 1 else high = middle end
  end
  return low
end

-- The series with cost less in bucket. Later rows start with a lower total, so they are written again.
function Series:without(bucket, cost)
  local cut = self.rows:up_to(bucket - 1)
  local later = self.rows:from(cut)
  if not later[1] or later[1][1] ~= bucket then return self end
  local held = later[1][3]
  local taken, tail = min(cost, held), {}
  if held > taken then tail[1] = {bucket, later[1][2], held - taken} end
  for i = 2, #later do
    tail[#tail + 1] = {later[i][1], (later[i][2] - taken) % WRAP, later[i][3]}
  end
  local stop = cut + #tail
  if stop == 0 then return nil end
  return series(self.rows, 0, stop, 0, nil, (self.total - taken) % WRAP, cut, tail) -- it is read again to decide
end

local TieredWindow = {series = true}
TieredWindow.__index = TieredWindow

function TieredWindow:decide(state, now, cost)
  local bucket = floor(now / self.precision)
  local seen
  if not state then
    seen = Series.empty(nil, bucket)
  else
    if bucket < state.open then bucket = state.open end
    seen = state:since(bucket - self.span)
  end
  local starts = bucket * self.precision
  local at = max(now, starts)
  local room = self.amount - seen.sum
  if cost == 0 or cost > room then
    local retry = 0
    if cost > 0 then retry = self:fits_after(seen, cost, now) end
    return state, cost == 0, max(0, room), retry, self:fresh_after(seen, now), at
  end
  return seen:added(bucket, cost), true, room - cost, 0, starts + self.period - now, at
end

-- Microseconds until enough buckets have left the window for cost to fit.
function TieredWindow:fits_after(seen, cost, now)
  local must_leave = seen.sum + cost - self.amount
  return cost <= self.amount and (seen:reaching(must_leave) + self.span) * self.precision - now or nil
end

function TieredWindow:fresh_after(seen, now)
  return seen.sum > 0 and (seen.open + self.span) * self.precision - now or 0
end

function TieredWindow:charge(state, now, cost)
  local bucket = floor(now / self.precision)
  if not state then return Series.empty(nil, bucket):added(bucket, cost) end
  bucket = max(bucket, state.open)
  return state:since(bucket - self.span):added(bucket, cost)
end

function TieredWindow:refund(state, now, consumed, cost)
  if not state then return nil end
  return state:without(floor(consumed.at / self.precision), cost)
end

local RejectionCountingLog = setmetatable({}, TieredWindow)
RejectionCountingLog.__index = RejectionCountingLog

function RejectionCountingLog:decide(state, now, cost)
  local kept, allowed, remaining, retry, reset, at = TieredWindow.decide(self, state, now, cost)
  if allowed then return kept, allowed, remaining, retry, reset, at end
  local seen = self:charge(state, now, cost):newest(self.amount)
  retry = self:fits_after(seen, cost, now)
  return seen, false, 0, retry, self:fresh_after(seen, now), seen.open
end
