-- Everything that is the same for all algorithms: time, all or nothing, expiry, reply. The counterpart of call.py.
--
-- KEYS: the keys of all operations in turn. ARGV[1], packed: the limits, which operations name by number, and numbers.
-- There are two kinds of operation: hits, which are applied, and corrections. One starts with its kind, and whether hits
-- consume. Then follow its time (nil: the time of the server), the least milliseconds that its keys stay, and the count
-- of its keys. The numbers of each key are last.
-- The reply has, for each operation, its time and the values of its keys, or the text of its error. STATE and a number:
-- that key of the operation holds no state of its algorithm.
-- Times and amounts are whole numbers below 2^53: Lua is exact there.

local HITS = 1
local HEAD, NUMBERS = 5, {2, 5} -- of each key: limit and cost; of a correction also time, cost, delay of the charge
local LONGEST = 10^14

local message = cmsgpack.unpack(ARGV[1])
local limits, numbers = message[1], message[2]
local cursor, keys_read = 1, 0
local current = 1 -- the key of the running operation that is read
local reply, length = {}, 0

for _, limit in ipairs(limits) do
  local kind = KINDS[limit.kind]
  limit.read, limit.write = kind[2].read, kind[2].write
  setmetatable(limit, kind[1])
  if limit.held then -- the twin of _decide_leaving in limit.py
    function limit:decide(state, now, cost)
      local decide, held, whole = kind[1].decide, self.held, cost
      if type(cost) == 'table' then whole = cost[1] end
      local kept, allowed, remaining, retry, reset, at, delay = decide(self, state, now, cost)
      if whole ~= 0 and not (allowed and remaining >= held) then
        kept = state
        local _
        _, allowed, remaining, retry, reset, at, delay = decide(self, state, now, whole + held)
      end
      return kept, allowed, max(0, remaining - held), retry, reset, at, delay
    end
  end
end

-- The time of the server, the same for all operations of a call.
local server_time
local function time()
  if not server_time then
    local parts = redis.call('TIME')
    server_time = parts[1] * 1000000 + parts[2]
  end
  return server_time
end

-- The expiry of a key, in milliseconds, rounded up. It counts from the time that decided, because the server may have
-- been held up since.
local function expires_at(reset, min_ttl)
  local ttl = max(min_ttl, min(LONGEST, math.ceil(tonumber(reset) / 1000)))
  return string.format('%.0f', math.ceil(time() / 1000) + ttl)
end

local function add_decision(remaining, retry, reset, at, delay)
  reply[length + 1], reply[length + 2], reply[length + 3] = remaining, retry or -1, reset
  reply[length + 4], reply[length + 5] = at, delay or 0
  length = length + 5
end

-- The error of an operation, as it is replied: a text, or a table where pcall is that of Lua. Redis 6.2 puts a place in
-- the script before it.
local function failure(problem)
  if type(problem) == 'table' then problem = problem.err end
  problem = string.gsub(problem, '^@user_script: %d+: %-?', '')
  if problem == 'STATE' or string.find(problem, 'WRONGTYPE') then return 'STATE ' .. current end
  return problem
end

-- A lone hit needs no agreement of others, and none of the functions below.
local function apply_one(now, min_ttl, consume)
  local limit, cost, key = limits[numbers[HEAD + 1]], numbers[HEAD + 2], KEYS[1]
  local state = limit.read(limit, key)
  local kept, _, remaining, retry, reset, at, delay = limit:decide(state, now, cost)
  if consume and kept ~= state then limit.write(limit, key, kept, expires_at(reset, min_ttl)) end
  return {now, remaining, retry or -1, reset, at, delay or 0}
end

if numbers[1] == HITS and not numbers[HEAD + 3] then
  local ok, result = pcall(apply_one, numbers[3] or time(), numbers[4], numbers[2])
  return ok and result or redis.error_reply(failure(result))
end

-- All hits at one instant, all or none: decide_all of verdict.py.
local function apply(count, now, min_ttl, consume)
  local hits, allowed, bans = {}, true, nil -- bans: of each rule that has one, before its limits
  for i = 1, count do
    current = i
    local limit, cost, key = limits[numbers[cursor]], numbers[cursor + 1], KEYS[keys_read + i]
    local state = limit.read(limit, key)
    local hit = {limit:decide(state, now, cost)} -- kept, allowed, remaining, retry, reset, at, delay
    hit.limit, hit.key, hit.state = limit, key, state
    if limit.is_ban then
      bans = bans or {}
      bans[limit.rule] = {rejects = not hit[2]}
    end
    if not hit[2] then
      if not limit.shadow then allowed = false end
      if bans and bans[limit.rule] then bans[limit.rule].counts = true end
    end
    hits[i] = hit
    cursor = cursor + 2
  end
  for i, hit in ipairs(hits) do
    local limit, state, key = hit.limit, hit.state, hit.key
    local ban, retry = bans and bans[limit.rule], hit[4]
    if hit[2] and limit.is_ban and ban.counts then -- count_rejections of bans.py
      local kept = limit:charge(state, now, 1)
      ban.wait = select(4, limit:decide(kept, now, 1))
      hit = {limit:decide(kept, now, 0)}
      if consume then limit.write(limit, key, kept, expires_at(hit[5], min_ttl)) end
    elseif hit[2] and not (allowed and not (ban and ban.rejects)) then
      hit, retry = {limit:decide(state, now, 0)}, 0
    elseif consume and hit[1] ~= state then
      limit.write(limit, key, hit[1], expires_at(hit[5], min_ttl))
    end
    if retry and not hit[2] and ban and ban.wait and tonumber(retry) < ban.wait then -- a long wait is text
      retry = ban.wait
    end
    add_decision(hit[3], retry, hit[5], hit[6], hit[7])
  end
end

local function correct(count, now, min_ttl)
  for i = 1, count do
    current = i
    local limit, cost, key = limits[numbers[cursor]], numbers[cursor + 1], KEYS[keys_read + i]
    local state, kept = limit.read(limit, key), nil
    if numbers[cursor + 2] then
      local charge = {at = numbers[cursor + 2], cost = numbers[cursor + 3], delay = numbers[cursor + 4]}
      kept = limit:refund(state, now, charge, cost)
    else
      kept = limit:charge(state, now, cost)
    end
    if kept ~= state then
      limit.write(limit, key, kept, expires_at(0, min_ttl))
      local _, _, _, _, reset = limit:decide(limit.read(limit, key), now, 0)
      redis.call('PEXPIREAT', key, expires_at(reset, min_ttl))
    end
    cursor = cursor + 5
  end
end

local function run(kind, consume, explicit_now, min_ttl, count)
  local now = explicit_now or time()
  length = length + 1
  reply[length] = now
  if kind == HITS then
    apply(count, now, min_ttl, consume)
  else
    correct(count, now, min_ttl)
  end
end

while numbers[cursor] do
  local first, before = cursor, length
  local kind, count = numbers[first], numbers[first + HEAD - 1]
  cursor = first + HEAD
  local ok, problem = pcall(run, unpack(numbers, first, first + HEAD - 1))
  if not ok then
    problem = failure(problem)
    if string.find(problem, 'READONLY') then return redis.error_reply(problem) end
    length = before + 1
    reply[length] = problem -- the error of this operation only
  end
  cursor, keys_read = first + HEAD + count * NUMBERS[kind], keys_read + count
end
return reply
