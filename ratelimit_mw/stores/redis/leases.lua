-- Keeps leases as a sorted set: "id:cost" by expiry. At 0 stands "=total:bound", the sum of all costs and a bound of ids.

local Leases = {}
Leases.__index = Leases

local function parsed(found)
  local leases = {}
  for i = 1, #found, 2 do
    local id, cost = string.match(found[i], '^(%d+):(%d+)$')
    if id then leases[#leases + 1] = {tonumber(id), tonumber(found[i + 1]), tonumber(cost)} end
  end
  return leases
end

local function member(lease)
  return string.format('%.0f:%.0f', lease[1], lease[3])
end

function Leases:latest()
  return tonumber(redis.call('ZRANGE', self.key, -1, -1, 'WITHSCORES')[2])
end

function Leases:ended(now)
  return parsed(redis.call('ZRANGEBYSCORE', self.key, 1, string.format('%.0f', now), 'WITHSCORES'))
end

function Leases:find(id, cost)
  local ends = redis.call('ZSCORE', self.key, member({id, 0, cost}))
  if ends then return {id, tonumber(ends), cost} end
  for _, lease in ipairs(parsed(redis.call('ZRANGE', self.key, 0, -1, 'WITHSCORES'))) do
    if lease[1] == id then return lease end
  end
end

function Leases:newest()
  local newest = 0
  for _, lease in ipairs(parsed(redis.call('ZRANGE', self.key, 0, -1, 'WITHSCORES'))) do
    newest = max(newest, lease[1])
  end
  return newest
end

function Leases.read(limit, key)
  local sums = redis.call('ZRANGE', key, 0, 0)[1]
  if not sums then return nil end
  local total, bound = string.match(sums, '^=(%d+):(%d+)$')
  if not total then error('a key holds something else than a state of its algorithm', 0) end
  local count = redis.call('ZCARD', key) - 1
  return setmetatable(
    {key = key, sums = sums, total = tonumber(total), bound = tonumber(bound), count = count}, Leases)
end

function Leases.write(limit, key, kept, goes_at)
  if not kept then return redis.call('DEL', key) end
  for _, lease in ipairs(kept.gone) do
    redis.call('ZREM', key, member(lease))
  end
  if kept.leases then redis.call('ZREM', key, kept.leases.sums) end
  redis.call('ZADD', key, 0, string.format('=%.0f:%.0f', kept.total, kept.bound))
  if kept.put then redis.call('ZADD', key, string.format('%.0f', kept.put[2]), member(kept.put)) end
  redis.call('PEXPIREAT', key, goes_at)
end
