-- The codec of compact states: one short text, the numbers joined by colons, as Algorithm.dump in limit.py. A pattern is
-- the fastest way to read a known count of numbers.

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
  if limit.fields then
    local a, b, c, d, e = string.match(text, PATTERNS[limit.fields])
    if not a then error('STATE', 0) end
    return {tonumber(a), tonumber(b), tonumber(c), tonumber(d), tonumber(e)}
  end
  if not string.find(text, '^%d+:%d+[:%d]*$') then error('STATE', 0) end
  local state = {}
  for number in string.gmatch(text, '%d+') do
    state[#state + 1] = tonumber(number)
  end
  return state
end

function Packed.write(limit, key, state, expires_at)
  if not state then return redis.call('DEL', key) end
  local format = FORMATS[limit.fields] or string.rep('%.0f:', #state - 1) .. '%.0f'
  redis.call('SET', key, string.format(format, unpack(state)), 'PXAT', expires_at)
end
