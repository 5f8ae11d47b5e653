-- Without arguments: return the time of the server and the values of the keys. With them: write or delete values that
-- are still as they were read, all or none. Each key has three arguments: "=" and the old value, or "" without one; "="
-- and the new value, or "" to delete it; the milliseconds that it stays, 0 without an expiry.

local values = {}
for i, key in ipairs(KEYS) do
  values[i] = redis.pcall('GET', key)
  if type(values[i]) == 'table' then return redis.error_reply('STATE ' .. i) end
end
if #ARGV == 0 then
  local time = redis.call('TIME')
  return {time[1], time[2], unpack(values, 1, #KEYS)}
end
for i in ipairs(KEYS) do
  if (values[i] and '=' .. values[i] or '') ~= ARGV[3 * i - 2] then return 0 end
end
for i, key in ipairs(KEYS) do
  local value, milliseconds = ARGV[3 * i - 1], ARGV[3 * i]
  if value == '' then
    redis.call('DEL', key)
  elseif milliseconds == '0' then
    redis.call('SET', key, string.sub(value, 2))
  else
    redis.call('SET', key, string.sub(value, 2), 'PX', milliseconds)
  end
end
return 1
