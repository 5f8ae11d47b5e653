-- Products of whole numbers beyond 2^53, where Lua's numbers stop being exact: the twin of muldiv in base.py.
-- a, b < 2^53; c < 2^45, which holds any period (366 days in microseconds) and any amount (10^12).

local floor, max, min = math.floor, math.max, math.min
local EXACT = 2^53

-- Floor and remainder of (a * b + plus) / c, plus < 2^52; a floor of 2^53 or more is an approximation.
local function muldiv(a, b, c, plus)
  plus = plus or 0
  local product = a * b + plus
  if product < EXACT then
    local quotient = floor(product / c)
    return quotient, product - quotient * c
  end
  local whole = floor(a / c)
  local rest = a - whole * c
  local quotient, left, limb = 0, 0, 2^49
  local digits = b
  while limb >= 1 do -- b in limbs of 7 bits: left * 128 + rest * 127 < 2^53
    local digit = floor(digits / limb)
    digits = digits - digit * limb
    local dividend = left * 128 + rest * digit
    local share = floor(dividend / c)
    quotient = quotient * 128 + share
    left = dividend - share * c
    limb = limb / 128
  end
  local share = floor((left + plus) / c)
  return whole * b + quotient + share, left + plus - share * c
end

-- (a * b + plus) / c, rounded up, plus later, as decimal text, for results that do not fit a number.
local function ceil_as_text(a, b, c, plus, later)
  local x, y, digits = {}, {}, {}
  for i = 1, 6 do
    x[i], a = a % 1000, floor(a / 1000)
    y[i], b = b % 1000, floor(b / 1000)
  end
  for i = 1, 12 do
    digits[i], plus = plus % 1000, floor(plus / 1000)
  end
  local carry = 0
  for i = 1, 12 do
    local sum = digits[i] + carry
    for j = max(1, i - 5), min(i, 6) do
      sum = sum + x[j] * y[i - j + 1]
    end
    digits[i], carry = sum % 1000, floor(sum / 1000)
  end
  local left = 0
  for i = 12, 1, -1 do
    local dividend = left * 1000 + digits[i]
    digits[i] = floor(dividend / c)
    left = dividend - digits[i] * c
  end
  carry = later + (left > 0 and 1 or 0)
  local text = ''
  for i = 1, 12 do
    local sum = digits[i] + carry
    text = string.format('%03.0f', sum % 1000) .. text
    carry = floor(sum / 1000)
  end
  return (string.gsub(text, '^0+', ''))
end

-- (a * b + plus) / c, rounded up, plus later: a number, or decimal text when a number would not be exact.
local function ceildiv(a, b, c, plus, later)
  local quotient, rest = muldiv(a, b, c, plus)
  if rest > 0 then quotient = quotient + 1 end
  if quotient + later < EXACT then return quotient + later end
  return ceil_as_text(a, b, c, plus, later)
end
