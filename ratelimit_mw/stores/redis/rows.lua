-- The codec of series: a sorted set, by bucket "running total before it:cost in it". A hit rewrites few rows.

local Rows = {}
Rows.__index = Rows

local function parse_row(entries, i)
  local before, cost = string.match(entries[i], '^(%d+):(%d+)$')
  if not before then error('STATE', 0) end
  return tonumber(entries[i + 1]), tonumber(before), tonumber(cost)
end

function Rows:row(i)
  return parse_row(redis.call('ZRANGE', self.key, i, i, 'WITHSCORES'), 1)
end

function Rows:up_to(bucket)
  return redis.call('ZCOUNT', self.key, '-inf', string.format('%.0f', bucket))
end

function Rows:from(i)
  local entries, rows = redis.call('ZRANGE', self.key, i, -1, 'WITHSCORES'), {}
  for j = 1, #entries, 2 do
    rows[#rows + 1] = {parse_row(entries, j)}
  end
  return rows
end

function Rows.read(limit, key)
  local newest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  if not newest[1] then return nil end
  local bucket, before, cost = parse_row(newest, 1)
  local size = redis.call('ZCARD', key)
  return series(setmetatable({key = key, size = size}, Rows), 0, size, 0, bucket, (before + cost) % WRAP)
end

function Rows.write(limit, key, view, expires_at)
  if not view then return redis.call('DEL', key) end
  if view.rows then
    if view.cut < view.rows.size then redis.call('ZREMRANGEBYRANK', key, view.cut, -1) end
    if view.start > 0 then redis.call('ZREMRANGEBYRANK', key, 0, view.start - 1) end
  end
  local added = {}
  for i, row in ipairs(view.tail) do
    added[#added + 1] = string.format('%.0f', row[1])
    added[#added + 1] = string.format('%.0f:%.0f', row[2], row[3])
    if #added == 1000 or i == #view.tail then
      redis.call('ZADD', key, unpack(added))
      added = {}
    end
  end
  redis.call('PEXPIREAT', key, expires_at)
end
