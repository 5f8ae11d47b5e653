-- The twin of concurrency.py. State: slots, each an id and an expiry. Their store provides count, latest (the last
-- expiry), ended(now), ends(id) and newest() (the largest id). A new state is without the slots in gone, and has those in
-- put, which end at ends_at.

local HINT = 1000000

local Concurrency = {}
Concurrency.__index = Concurrency

local function next_id(state, now)
  if not state then return now end
  return max(now, state:newest() + 1)
end

-- The live ones of some slots.
local function live(state, first, last, now)
  local found = {}
  for id = first, state and last or first - 1 do
    if (state:ends(id) or 0) > now then found[#found + 1] = id end
  end
  return found
end

function Concurrency:taken(state, gone, first, cost, now)
  local put = {}
  for id = first, first + cost - 1 do
    put[#put + 1] = id
  end
  return {slots = state, gone = gone, put = put, ends_at = now + self.lifetime}
end

function Concurrency:decide(state, now, cost)
  local named
  if type(cost) == 'table' then cost, named = cost[1], cost[2] end
  local gone = state and state:ended(now) or {}
  local room = self.amount - (state and state.count or 0) + #gone
  if named then room = room + #live(state, named, named + min(cost, self.amount) - 1, now) end -- the same hit again
  if cost == 0 or cost > room then
    local retry = 0
    if cost > 0 then retry = cost <= self.amount and HINT or nil end
    local reset = state and max(0, state.latest - now) or 0
    return state, cost == 0, max(0, room), retry, reset, now
  end
  local first = named or next_id(state, now)
  return self:taken(state, gone, first, cost, now), true, room - cost, 0, self.lifetime, named and now or first
end

function Concurrency:charge(state, now, cost)
  return self:taken(state, state and state:ended(now) or {}, next_id(state, now), min(cost, self.amount), now)
end

-- Release the last slots of a hit; with a cost of 0, renew all.
function Concurrency:refund(state, now, consumed, cost)
  if not state or consumed.cost > self.amount then return state end -- no hit has taken as many
  local last = consumed.at + consumed.cost - 1
  local gone, put = state:ended(now), live(state, cost == 0 and consumed.at or last - cost + 1, last, now)
  if #gone + #put == 0 then return state end
  if cost == 0 then return {slots = state, gone = gone, put = put, ends_at = now + self.lifetime} end
  for _, id in ipairs(put) do
    gone[#gone + 1] = id
  end
  return {slots = state, gone = gone, put = {}}
end
