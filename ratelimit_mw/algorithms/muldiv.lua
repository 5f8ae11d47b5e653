-- Products of whole numbers beyond 2^53, where Lua's numbers stop being exact: divmod(a * b, c) in Python.
--
-- a, b < 2^53. c < 2^45, which holds any period (366 days in microseconds) and any amount (10^12).

local floor, max, min = math.floor, math.max, math.min
local EXACT, BASE = 2^53, 10^12

-- Floor and remainder of (a * b + plus) / c, plus < 2^52. The floor is high * 10^12 + low, for a / c < 2^46.
local function divide(a, b, c, plus)
  local whole, high, low, rest, limb = floor(a / c), 0, 0, 0, 2^49
  a = a - whole * c
  while limb >= 1 do -- b in limbs of 7 bits: rest * 128 + a * 127 < 2^53
    local digit = floor(b / limb)
    b = b - digit * limb
    local dividend = rest * 128 + a * digit
    local share = floor(dividend / c)
    rest = dividend - share * c
    low = low * 128 + whole * digit + share
    local carry = floor(low / BASE)
    high, low, limb = high * 128 + carry, low - carry * BASE, limb / 128
  end
  local share = floor((rest + plus) / c)
  return high, low + share, rest + plus - share * c
end

-- Floor and remainder of (a * b + plus) / c; a floor of 2^53 or more is an approximation.
local function muldiv(a, b, c, plus)
  plus = plus or 0
  local product = a * b + plus
  if product < EXACT then
    local quotient = floor(product / c)
    return quotient, product - quotient * c
  end
  local high, low, rest = divide(a, b, c, plus)
  return high * BASE + low, rest
end

-- (count * period + plus) / c, rounded up, plus later: a number, or decimal text when a number would not be exact.
local function ceildiv(count, period, c, plus, later)
  local quotient, rest = muldiv(count, period, c, plus)
  if rest > 0 then later = later + 1 end
  if quotient + later < EXACT then return quotient + later end
  local high, low = divide(period, count, c, plus)
  low = low + later
  return string.format('%.0f%012.0f', high + floor(low / BASE), low % BASE)
end
