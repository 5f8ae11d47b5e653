-- The twin of concurrency.py. State: slots, each an id, an expiry and a cost. Their store provides total (the sum of all
-- costs), count, latest() (the last expiry), ended(now) and newest() (the largest id). It also provides get(id, cost) and
-- find(id, cost), which finds a slot of another cost too. A new state is without the slots in gone, and has the slot put.

local HINT = 1000000

local Concurrency = {}
Concurrency.__index = Concurrency

local function total_of(slots)
  local total = 0
  for _, slot in ipairs(slots) do
    total = total + slot[3]
  end
  return total
end

-- The state without the slots that are gone, with one put in their place.
local function changed(state, gone, put)
  if not put and state.count == #gone then return nil end
  local total = (state and state.total or 0) - total_of(gone)
  if put then total = total + put[3] end
  return {slots = state, gone = gone, put = put, total = total}
end

local function next_id(state, now)
  if not state then return now end
  return max(now, state:newest() + 1)
end

function Concurrency:decide(state, now, cost)
  local named
  if type(cost) == 'table' then cost, named = cost[1], cost[2] end
  local gone = state and state:ended(now) or {}
  local again = named and state and state:get(named, cost)
  if again and again[2] > now then gone[#gone + 1] = again end
  local room = self.amount
  if state then room = room - state.total + total_of(gone) end
  if cost == 0 or cost > room then
    local retry = 0
    if cost > 0 then retry = cost <= self.amount and HINT or nil end
    local reset = state and max(0, state:latest() - now) or 0
    return state, cost == 0, max(0, room), retry, reset, now
  end
  local slot = named or next_id(state, now)
  local kept = changed(state, gone, {slot, now + self.lifetime, cost})
  return kept, true, room - cost, 0, self.lifetime, named and now or slot
end

function Concurrency:charge(state, now, cost)
  return changed(state, state and state:ended(now) or {}, {next_id(state, now), now + self.lifetime, cost})
end

-- Release the slot; with a cost of 0, renew it.
function Concurrency:refund(state, now, consumed, cost)
  if not state then return nil end
  local gone = state:ended(now)
  local slot = state:find(consumed.at, consumed.cost)
  if not slot or slot[2] <= now then return #gone == 0 and state or changed(state, gone, nil) end
  gone[#gone + 1] = slot
  if cost == 0 then return changed(state, gone, {slot[1], now + self.lifetime, slot[3]}) end
  if slot[3] > cost then return changed(state, gone, {slot[1], slot[2], slot[3] - cost}) end
  return changed(state, gone, nil)
end
