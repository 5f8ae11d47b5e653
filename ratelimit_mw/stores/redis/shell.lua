-- What is the same for every algorithm: the time, all or nothing, expiry, the reply. The counterpart of message.py.
--
-- KEYS: the keys of all requests, one after another. ARGV[1], packed: the limits that are named by number, and numbers:
-- for each request what it asks, its time (nil: the server's), the milliseconds its keys stay at least, how many keys,
-- and for each key its own numbers. Replies for each request with its time and the values of its keys, or with a text
-- when it went wrong. Times and amounts are whole numbers below 2^53, which replies hold exactly.

local HIT, PEEK, HIT_REJECTED, PEEK_REJECTED, CORRECT = 1, 2, 3, 4, 5 -- and READ
local NUMBERS = {2, 2, 2, 2, 5, 0} -- for each key: limit and cost; to correct also time, cost and delay of what was consumed
local LONGEST = 10^14

local message = cmsgpack.unpack(ARGV[1])
local limits, asked = message[1], message[2]
local cursor, keys_read = 1, 0
local reply, length = {}, 0

for _, limit in ipairs(limits) do
  local kind = KINDS[limit.kind]
  limit.read, limit.write = kind[2].read, kind[2].write
  setmetatable(limit, kind[1])
end

-- The server's time, the same for all that one call decides.
local server_time
local function time()
  if not server_time then
    local found = redis.call('TIME')
    server_time = found[1] * 1000000 + found[2]
  end
  return server_time
end

-- The moment at which a key goes, in milliseconds, rounded up: counted from the time that has decided, as the server may
-- have been held up since.
local function goes_at(reset, least)
  local lasts = max(least, min(LONGEST, math.ceil(tonumber(reset) / 1000)))
  return string.format('%.0f', math.ceil(time() / 1000) + lasts)
end

local function say(remaining, retry, reset, at, delay)
  reply[length + 1], reply[length + 2], reply[length + 3] = remaining, retry or -1, reset
  reply[length + 4], reply[length + 5] = at, delay or 0
  length = length + 5
end

-- A lone hit: as apply, without agreeing on anything.
local function apply_one(now, least, consume)
  local limit, cost, key = limits[asked[cursor]], asked[cursor + 1], KEYS[keys_read + 1]
  local state = limit.read(limit, key)
  local kept, _, remaining, retry, reset, at, delay = limit:decide(state, now, cost)
  if consume and kept ~= state then
    limit.write(limit, key, kept, goes_at(reset, least))
  end
  say(remaining, retry, reset, at, delay)
end

-- All hits at one instant, all or none: decide_all of stores/base.py. What is rejected elsewhere is not allowed here.
local function apply(count, now, least, consume, allowed)
  local hits = {}
  for i = 1, count do
    local limit, cost, key = limits[asked[cursor]], asked[cursor + 1], KEYS[keys_read + i]
    local state = limit.read(limit, key)
    local hit = {limit:decide(state, now, cost)} -- kept, allowed, remaining, retry, reset, at, delay
    hit.limit, hit.key, hit.state = limit, key, state
    if not hit[2] and not limit.shadow then allowed = false end
    hits[i] = hit
    cursor = cursor + 2
  end
  for _, hit in ipairs(hits) do
    local limit, state = hit.limit, hit.state
    if hit[2] and not allowed then
      hit = {limit:decide(state, now, 0)}
    elseif consume and hit[1] ~= state then
      limit.write(limit, hit.key, hit[1], goes_at(hit[5], least))
    end
    say(hit[3], hit[4], hit[5], hit[6], hit[7])
  end
end

local function correct(count, now, least)
  for i = 1, count do
    local limit, cost, key = limits[asked[cursor]], asked[cursor + 1], KEYS[keys_read + i]
    local state, kept = limit.read(limit, key), nil
    if asked[cursor + 2] then
      local consumed = {at = asked[cursor + 2], cost = asked[cursor + 3], delay = asked[cursor + 4]}
      kept = limit:give_back(state, now, consumed, cost)
    else
      kept = limit:charge(state, now, cost)
    end
    if kept ~= state then
      limit.write(limit, key, kept, goes_at(0, least))
      local _, _, _, _, reset = limit:decide(limit.read(limit, key), now, 0)
      redis.call('PEXPIREAT', key, goes_at(reset, least))
    end
    cursor = cursor + 5
  end
end

local function read(count)
  for i = 1, count do
    length = length + 1
    reply[length] = redis.call('GET', KEYS[keys_read + i]) or false
  end
end

local function answer(what, given, least, count)
  local now = given or time()
  length = length + 1
  reply[length] = now
  if what > CORRECT then
    read(count)
  elseif what == CORRECT then
    correct(count, now, least)
  elseif count == 1 and what <= PEEK then
    apply_one(now, least, what == HIT)
  else
    apply(count, now, least, what == HIT or what == HIT_REJECTED, what <= PEEK)
  end
end

while asked[cursor] do
  local what, given, least, count = unpack(asked, cursor, cursor + 3)
  local said, ends = length, cursor + 4 + count * NUMBERS[what]
  cursor = cursor + 4
  local fine, problem = pcall(answer, what, given, least, count)
  if not fine then
    problem = type(problem) == 'table' and problem.err or problem
    if string.find(problem, 'READONLY', 1, true) then return redis.error_reply(problem) end
    for i = length, said + 1, -1 do
      reply[i] = nil
    end
    length = said + 1
    reply[length] = problem -- the others of this call are not to blame
  end
  cursor, keys_read = ends, keys_read + count
end
return reply
