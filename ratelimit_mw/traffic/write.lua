-- Adds the counts of a part of a batch. All keys have one hash tag.
-- KEYS[1]: the prefix of all keys.
-- ARGV[1]: the token of the part. ARGV[2]: the most names of a hash. ARGV[3]: the name of further ones.
-- ARGV[4]: the retention. ARGV[5]: the longest time in seconds.
-- ARGV[6]: the counts, as {{step, start, seconds, {event: {total, {client: number}}}}, ...}.
local prefix, token, most, other = KEYS[1], KEYS[1] .. ':written:' .. ARGV[1], tonumber(ARGV[2]), ARGV[3]
if redis.call('EXISTS', token) == 1 then
  return 0
end

-- Returns the names that a hash has no room for. The largest of the new ones get the room.
local function without_room(key, counts)
  local size, new, left_out = redis.call('HLEN', key), {}, {}
  for name in pairs(counts) do
    new[#new + 1] = name
  end
  if size + #new <= most then
    return left_out
  end
  new = {}
  for name in pairs(counts) do
    if name ~= other and redis.call('HEXISTS', key, name) == 0 then
      new[#new + 1] = name
    end
  end
  table.sort(new, function(a, b)
    return counts[a] > counts[b] or (counts[a] == counts[b] and a < b)
  end)
  for i = math.max(0, most - size + redis.call('HEXISTS', key, other)) + 1, #new do
    left_out[new[i]] = true
  end
  return left_out
end

local function add(key, name, number, seconds)
  redis.call('HINCRBY', key, name, string.format('%.0f', number))
  redis.call('EXPIRE', key, seconds)
end

for _, bucket in ipairs(cmsgpack.unpack(ARGV[6])) do
  local key, seconds, events = prefix .. ':' .. bucket[1] .. ':' .. bucket[2], bucket[3], bucket[4]
  local totals = {}
  for event, counts in pairs(events) do
    totals[event] = counts[1]
  end
  local folded = without_room(key, totals)
  for event, counts in pairs(events) do
    local owner = folded[event] and other or event
    add(key, owner, counts[1], seconds)
    local clients = {}
    for client in pairs(counts[2]) do
      clients[#clients + 1] = client
    end
    if #clients > 0 then
      local table_key, sketch = key .. ':n:' .. owner, key .. ':d:' .. owner
      redis.call('PFADD', sketch, unpack(clients))
      redis.call('EXPIRE', sketch, seconds)
      local left_out = without_room(table_key, counts[2])
      for client, number in pairs(counts[2]) do
        add(table_key, left_out[client] and other or client, number, seconds)
      end
    end
  end
end
redis.call('SET', prefix .. ':retention', ARGV[4], 'EX', ARGV[5])
redis.call('SET', token, 1, 'EX', 86400)
return 1
