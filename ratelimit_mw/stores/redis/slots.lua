-- The codec of slots: a sorted set of "id:cost" by expiry. The member at 0 is "=total": the sum of all costs.

local Slots = {}
Slots.__index = Slots

local function parse_slots(entries)
  local slots = {}
  for i = 1, #entries, 2 do
    local id, cost = string.match(entries[i], '^(%d+):(%d+)$')
    if id then slots[#slots + 1] = {tonumber(id), tonumber(entries[i + 1]), tonumber(cost)} end
  end
  return slots
end

local function member(slot)
  return string.format('%.0f:%.0f', slot[1], slot[3])
end

function Slots:latest()
  return tonumber(redis.call('ZRANGE', self.key, -1, -1, 'WITHSCORES')[2])
end

function Slots:ended(now)
  return parse_slots(redis.call('ZRANGEBYSCORE', self.key, 1, string.format('%.0f', now), 'WITHSCORES'))
end

function Slots:get(id, cost)
  local ends = redis.call('ZSCORE', self.key, member({id, 0, cost}))
  return ends and {id, tonumber(ends), cost}
end

function Slots:find(id, cost)
  local slot = self:get(id, cost)
  if slot then return slot end
  for _, slot in ipairs(parse_slots(redis.call('ZRANGE', self.key, 0, -1, 'WITHSCORES'))) do
    if slot[1] == id then return slot end
  end
end

function Slots:newest()
  local newest = 0
  for _, slot in ipairs(parse_slots(redis.call('ZRANGE', self.key, 0, -1, 'WITHSCORES'))) do
    newest = max(newest, slot[1])
  end
  return newest
end

function Slots.read(limit, key)
  local sums = redis.call('ZRANGE', key, 0, 0)[1]
  if not sums then return nil end
  local total = string.match(sums, '^=(%d+)$')
  if not total then error('STATE', 0) end
  local count = redis.call('ZCARD', key) - 1
  return setmetatable({key = key, sums = sums, total = tonumber(total), count = count}, Slots)
end

function Slots.write(limit, key, kept, expires_at)
  if not kept then return redis.call('DEL', key) end
  for _, slot in ipairs(kept.gone) do
    redis.call('ZREM', key, member(slot))
  end
  if kept.slots then redis.call('ZREM', key, kept.slots.sums) end
  redis.call('ZADD', key, 0, string.format('=%.0f', kept.total))
  if kept.put then redis.call('ZADD', key, string.format('%.0f', kept.put[2]), member(kept.put)) end
  redis.call('PEXPIREAT', key, expires_at)
end
