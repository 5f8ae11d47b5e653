-- The twin of in_flight.py. State: leases, each an id, an expiry and a cost. Whoever keeps them gives total (the sum of
-- all costs), bound (no id is larger), count, latest() (the last expiry), ended(now), find(id, cost) and newest() (the
-- largest id). What is to be kept: without the leases in gone, and with the lease put.

local HINT = 1000000

local InFlight = {leases = true}
InFlight.__index = InFlight

local function total_of(leases)
  local total = 0
  for _, lease in ipairs(leases) do
    total = total + lease[3]
  end
  return total
end

-- Without the leases that are gone, with one put in their place.
local function changed(state, gone, put)
  local count, total, bound = state and state.count or 0, state and state.total or 0, state and state.bound or 0
  if count == #gone and not put then return nil end
  total = total - total_of(gone)
  if put then
    total, bound = total + put[3], max(bound, put[1])
  end
  return {leases = state, gone = gone, put = put, total = total, bound = bound}
end

local function next_id(state, now)
  if not state or state.bound < now then return now end
  return max(now, state:newest() + 1)
end

function InFlight:decide(state, now, cost)
  local ended = state and state:ended(now) or {}
  local room = self.amount
  if state then room = room - state.total + total_of(ended) end
  if cost == 0 or cost > room then
    local retry = 0
    if cost > 0 then retry = cost <= self.amount and HINT or nil end
    local reset = state and max(0, state:latest() - now) or 0
    return state, cost == 0, max(0, room), retry, reset, now
  end
  local lease = next_id(state, now)
  local kept = changed(state, ended, {lease, now + self.lifetime, cost})
  return kept, true, room - cost, 0, self.lifetime, lease
end

function InFlight:charge(state, now, cost)
  return changed(state, state and state:ended(now) or {}, {next_id(state, now), now + self.lifetime, cost})
end

-- Ends the lease; with a cost of 0, renews it.
function InFlight:give_back(state, now, spent, cost)
  if not state then return nil end
  local gone = state:ended(now)
  local lease = state:find(spent.at, spent.cost)
  if not lease or lease[2] <= now then return #gone > 0 and changed(state, gone, nil) or #gone == 0 and state or nil end
  gone[#gone + 1] = lease
  if cost == 0 then return changed(state, gone, {lease[1], now + self.lifetime, lease[3]}) end
  if lease[3] > cost then return changed(state, gone, {lease[1], lease[2], lease[3] - cost}) end
  return changed(state, gone, nil)
end
