-- Plays traces through the bare twins, whose text stands before this: states are passed in, nothing is read or timed.
-- ARGV[1], packed: traces, each a limit, a state (numbers; for a series the bucket and cost of each row) or nil, the
-- running total before that, and steps: what, now, cost, and time, cost and delay of what was consumed.
-- Replies with the answer and the state after each step, as texts.

local Table = {} -- the rows of a series, in a table
Table.__index = Table

function Table:row(i)
  return unpack(self.list[i + 1])
end

function Table:up_to(bucket)
  local count = 0
  for _, row in ipairs(self.list) do
    if row[1] <= bucket then count = count + 1 end
  end
  return count
end

function Table:from(i)
  return {unpack(self.list, i + 1)}
end

local function stored(list)
  if #list == 0 then return nil end
  local bucket, before, cost = unpack(list[#list])
  return series(setmetatable({list = list}, Table), 0, #list, 0, bucket, (before + cost) % WRAP)
end

local function from_entries(numbers, total)
  local list = {}
  for i = 1, #numbers, 2 do
    list[#list + 1] = {numbers[i], total, numbers[i + 1]}
    total = (total + numbers[i + 1]) % WRAP
  end
  return stored(list)
end

local function settled(view)
  local list = {}
  for i = view.start, view.stop - 1 do
    list[#list + 1] = {view:row(i)}
  end
  return stored(list)
end

local Held = {} -- slots, in a table
Held.__index = Held

local function held(list)
  if #list == 0 then return nil end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  local latest = 0
  for _, slot in ipairs(list) do
    latest = max(latest, slot[2])
  end
  return setmetatable({list = list, count = #list, latest = latest}, Held)
end

function Held:ended(now)
  local found = {}
  for _, slot in ipairs(self.list) do
    if slot[2] <= now then found[#found + 1] = slot[1] end
  end
  return found
end

function Held:ends(id)
  for _, slot in ipairs(self.list) do
    if slot[1] == id then return slot[2] end
  end
end

function Held:newest()
  return self.list[#self.list][1]
end

local function held_after(kept)
  local left, changed = {}, {}
  for _, id in ipairs(kept.gone) do
    changed[id] = true
  end
  for _, id in ipairs(kept.put) do
    changed[id] = true
    left[#left + 1] = {id, kept.ends_at}
  end
  for _, slot in ipairs(kept.slots and kept.slots.list or {}) do
    if not changed[slot[1]] then left[#left + 1] = slot end
  end
  return held(left)
end

local function after(kept)
  if kept and kept.tail then return settled(kept) end
  if kept and kept.gone then return held_after(kept) end
  return kept
end

local function text(state)
  local numbers = {}
  if state and state.list then
    for _, slot in ipairs(state.list) do
      numbers[#numbers + 1] = string.format('%.0f:%.0f', unpack(slot))
    end
  elseif state and state.rows then
    for _, row in ipairs(state.rows.list) do
      numbers[#numbers + 1] = string.format('%.0f:%.0f', row[1], row[3])
    end
  else
    for _, number in ipairs(state or {}) do
      numbers[#numbers + 1] = string.format('%.0f', number)
    end
  end
  return table.concat(numbers, ':')
end

local function said(value)
  if value == nil then return 'never' end
  return type(value) == 'number' and string.format('%.0f', value) or tostring(value)
end

local function played(limit, state, what, now, cost, at, consumed_cost, delay)
  if what == 'charge' then return '', limit:charge(state, now, cost) end
  if what == 'refund' then
    return '', limit:refund(state, now, {at = at, cost = consumed_cost, delay = delay}, cost)
  end
  local kept, allowed, remaining, retry, reset, hit_at, waits = limit:decide(state, now, cost)
  local answer = {said(allowed), said(remaining), said(retry), said(reset), said(hit_at), said(waits or 0)}
  return table.concat(answer, ' '), kept
end

local reply = {}
for _, trace in ipairs(cmsgpack.unpack(ARGV[1])) do
  local limit, state, total, steps = unpack(trace, 1, 4)
  setmetatable(limit, KINDS[limit.kind])
  if state and KINDS[limit.kind].series then state = from_entries(state, total) end
  for _, step in ipairs(steps) do
    local answer, kept = played(limit, state, unpack(step, 1, 6))
    state = after(kept)
    reply[#reply + 1] = answer
    reply[#reply + 1] = text(state)
  end
end
return reply
