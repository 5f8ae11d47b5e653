-- A state that an algorithm without Lua has decided outside. It is written if the state that was read is unchanged.

local Swap = {}
Swap.__index = Swap

function Swap.read(limit, key)
  if redis.call('GET', key) ~= (limit.expected or false) then error('CONFLICT', 0) end
  return nil
end

function Swap:decide(state, now, cost)
  return cost > 0 and self.kept ~= false and self or nil, cost == 0 or self.allowed, 0, 0, self.lasts, now
end

function Swap.write(limit, key, state, expires_at)
  if not limit.kept then return redis.call('DEL', key) end
  redis.call('SET', key, limit.kept, 'PXAT', expires_at)
end
