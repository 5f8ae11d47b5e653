-- The twin of ban.py. State: the end of the last ban, the number of bans, the time of each rejection since.

local ANY = 1000000000000

local Ban = {is_ban = true}
Ban.__index = Ban

function Ban:decide(state, now, cost)
  if not state then return nil, true, ANY, 0, 0, now end
  local ends, newest, forgotten_at = state[1], 0, 0
  if ends > 0 then forgotten_at = ends + self.quiet end
  if #state > 2 then
    newest = state[#state]
    forgotten_at = max(forgotten_at, newest + self.within)
  end
  local reset = max(0, forgotten_at - now)
  if now < ends then
    local retry = 0
    if cost > 0 then retry = ends - now end
    return state, cost == 0, 0, retry, reset, now
  end
  return state, true, ANY, 0, reset, max(now, newest)
end

function Ban:charge(state, now, cost)
  local ends, bans, at = 0, 0, now
  if state then ends, bans = state[1], state[2] end
  if self.after > 0 and now < ends then return state end
  if now >= ends + self.quiet then ends, bans = 0, 0 end
  if state and #state > 2 then at = max(now, state[#state]) end
  if self.after == 0 then return {at + self.first, bans} end
  local recent = {ends, bans}
  for i = 3, state and #state or 0 do
    if state[i] > at - self.within then recent[#recent + 1] = state[i] end
  end
  recent[#recent + 1] = at
  if #recent - 2 < self.after then return recent end
  return {at + self:length(bans), bans + 1}
end

function Ban:length(bans)
  local length = self.first
  for _ = 1, bans do
    if length == self.longest then break end
    length = min(self.longest, length * self.growth)
  end
  return length
end

function Ban:refund(state, now, consumed, cost)
  local kept, found = {}, false
  for i, time in ipairs(state or {}) do
    if i > 2 and not found and time == consumed.at then found = true else kept[#kept + 1] = time end
  end
  if not found then return state end
  if kept[1] == 0 and #kept == 2 then return nil end
  return kept
end
