-- Adds the counts of a part of a batch. All keys have one hash tag.
-- KEYS[1]: the prefix of all keys.
-- ARGV[1]: the token of the part. ARGV[2]: the most names of a hash. ARGV[3]: the name of further ones.
-- ARGV[4]: the retention. ARGV[5]: the longest time in seconds.
-- ARGV[6]: the counts, as {{step, start, seconds, {event: {total, {client: number}, error, missed}}}, ...}.
-- ARGV[7]: the salt of a new log. ARGV[8]: the cells in a row of the count-min sketch.
local prefix, token, most, other = KEYS[1], KEYS[1] .. ':written:' .. ARGV[1], tonumber(ARGV[2]), ARGV[3]
if redis.call('EXISTS', token) == 1 then
  return 0
end
local retention = redis.call('GET', prefix .. ':retention')
if retention and retention ~= ARGV[4] then
  return retention
end
local salt = redis.call('GET', prefix .. ':salt') or ARGV[7]
redis.call('SET', prefix .. ':salt', salt, 'EX', ARGV[5])

-- Returns the events that a bucket has no room for. The largest of the new ones get the room.
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

local function add(key, name, number)
  redis.call('HINCRBY', key, name, string.format('%.0f', number))
end

-- Adds the count of an event to one cell of each row, as count_min.py.
local function add_to_cells(key, event, number)
  local digest = redis.sha1hex(salt .. event)
  for row = 0, #digest / 8 - 1 do
    local part = tonumber(string.sub(digest, 8 * row + 1, 8 * row + 8), 16)
    add(key, row * ARGV[8] + part % ARGV[8], number)
  end
end

-- Drops the smallest clients if there are too many, as batch.py. Returns the count that all clients lose.
local function drop_clients(key)
  if redis.call('HLEN', key) <= 2 * most then
    return 0
  end
  local clients, counts, dropped = redis.call('HGETALL', key), {}, {}
  for i = 1, #clients, 2 do
    counts[#counts + 1] = tonumber(clients[i + 1])
  end
  table.sort(counts, function(a, b)
    return a > b
  end)
  local loss = counts[most + 1]
  for i = 1, #clients, 2 do
    if tonumber(clients[i + 1]) > loss then
      add(key, clients[i], -loss)
    else
      dropped[#dropped + 1] = clients[i]
    end
  end
  redis.call('HDEL', key, unpack(dropped))
  return loss
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
    add(key, owner, counts[1])
    if folded[event] then
      add_to_cells(key .. ':c', event, counts[1])
      redis.call('EXPIRE', key .. ':c', seconds)
    end
    if counts[3] > 0 then
      add(key .. ':e', owner, counts[3])
      add(key .. ':m', owner, counts[4])
      redis.call('EXPIRE', key .. ':e', seconds)
      redis.call('EXPIRE', key .. ':m', seconds)
    end
    local clients, table_key, sketch = {}, key .. ':n:' .. owner, key .. ':d:' .. owner
    for client, number in pairs(counts[2]) do
      add(table_key, client, number)
      clients[#clients + 1] = redis.sha1hex(salt .. client)
    end
    if #clients > 0 then
      redis.call('PFADD', sketch, unpack(clients))
      redis.call('EXPIRE', sketch, seconds)
      local loss = drop_clients(table_key)
      if loss > 0 then
        add(key .. ':e', owner, loss)
        redis.call('EXPIRE', key .. ':e', seconds)
      end
      redis.call('EXPIRE', table_key, seconds)
    end
  end
  redis.call('EXPIRE', key, seconds)
end
redis.call('SET', prefix .. ':retention', ARGV[4], 'EX', ARGV[5])
redis.call('SET', token, 1, 'EX', 86400)
return 1
