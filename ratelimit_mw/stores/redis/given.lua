-- A state that was decided outside, by an algorithm without a twin: it is written if what was read is still there.

local Given = {}
Given.__index = Given

function Given.read(limit, key)
  if redis.call('GET', key) ~= (limit.expected or false) then error('CONFLICT', 0) end
  return nil
end

function Given:decide(state, now, cost)
  return cost > 0 and self.changes and self or nil, cost == 0 or self.allowed, 0, 0, self.lasts, now
end

function Given.write(limit, key, state, goes_at)
  if not limit.kept then return redis.call('DEL', key) end
  redis.call('SET', key, limit.kept, 'PXAT', goes_at)
end
