-- The codec of bans: all numbers of the state joined by colons, as Algorithm.dump in limit.py.

local Times = {}

function Times.read(limit, key)
  local text = redis.call('GET', key)
  if not text then return nil end
  if not string.find(text, '^%d+:%d+[:%d]*$') then error('STATE', 0) end
  local state = {}
  for number in string.gmatch(text, '%d+') do
    state[#state + 1] = tonumber(number)
  end
  return state
end

function Times.write(limit, key, state, expires_at)
  if not state then return redis.call('DEL', key) end
  local texts = {}
  for i, number in ipairs(state) do
    texts[i] = string.format('%.0f', number)
  end
  redis.call('SET', key, table.concat(texts, ':'), 'PXAT', expires_at)
end
