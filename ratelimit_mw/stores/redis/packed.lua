-- The codec of compact states: one short text, the numbers joined by colons, as Algorithm.dump in limit.py.

local PATTERNS = {
  [3] = '^(%-?%d+):(%-?%d+):(%-?%d+)$',
  [4] = '^(%-?%d+):(%-?%d+):(%-?%d+):(%-?%d+)$',
  [5] = '^(%-?%d+):(%-?%d+):(%-?%d+):(%-?%d+):(%-?%d+)$',
}
local FORMATS = {[3] = '%.0f:%.0f:%.0f', [4] = '%.0f:%.0f:%.0f:%.0f', [5] = '%.0f:%.0f:%.0f:%.0f:%.0f'}

local Packed = {}

function Packed.read(limit, key)
  local text = redis.call('GET', key)
  if not text then return nil end
  local a, b, c, d, e = string.match(text, PATTERNS[limit.fields])
  if not a then error('STATE', 0) end
  return {tonumber(a), tonumber(b), tonumber(c), d and tonumber(d), e and tonumber(e)}
end

function Packed.write(limit, key, state, expires_at)
  if not state then return redis.call('DEL', key) end
  local text = string.format(FORMATS[limit.fields], state[1], state[2], state[3], state[4], state[5])
  redis.call('SET', key, text, 'PXAT', expires_at)
end
