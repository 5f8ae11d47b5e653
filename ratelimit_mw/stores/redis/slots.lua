-- The codec of slots: a sorted set of ids by expiry.

local Slots = {}
Slots.__index = Slots

local function ids_of(members)
  local ids = {}
  for i, member in ipairs(members) do
    ids[i] = tonumber(member)
  end
  return ids
end

function Slots:ended(now)
  return ids_of(redis.call('ZRANGEBYSCORE', self.key, '-inf', string.format('%.0f', now)))
end

function Slots:ends(id)
  return tonumber(redis.call('ZSCORE', self.key, string.format('%.0f', id)))
end

function Slots:newest()
  local newest = 0
  for _, id in ipairs(ids_of(redis.call('ZRANGE', self.key, 0, -1))) do
    newest = max(newest, id)
  end
  return newest
end

function Slots.read(limit, key)
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  if not last[1] then return nil end
  if not tonumber(last[1]) then error('STATE', 0) end
  return setmetatable({key = key, latest = tonumber(last[2]), count = redis.call('ZCARD', key)}, Slots)
end

function Slots.write(limit, key, kept, expires_at)
  for _, id in ipairs(kept.gone) do
    redis.call('ZREM', key, string.format('%.0f', id))
  end
  for _, id in ipairs(kept.put) do
    redis.call('ZADD', key, string.format('%.0f', kept.ends_at), string.format('%.0f', id))
  end
  redis.call('PEXPIREAT', key, expires_at)
end
