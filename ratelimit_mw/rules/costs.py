"""Costs that are read from a feature of the request. Pure."""

import inspect
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from ..errors import ConfigError
from ..keys.features import INVALID, Features
from ..keys.parts import checked_part, part_of
from ..quota import MAX_AMOUNT, checked_cost
from .declaration import checked_call

REQUESTS: Final = "requests"


class FeatureCost:
    """An estimate of the cost: the first feature that is present, else the number at the end, else 1.

    A value that is not a number above 0 counts as the number at the end. An invalid feature may have any value, so it
    has the largest cost. Each limit takes at most its own size: see ``Limit.capped``.

    >>> cost = FeatureCost("json:max_tokens|500")
    >>> [cost.read({"json:max_tokens": value}) for value in ("20", "2.5", "0", "-1", "many", None)]
    [20, 3, 500, 500, 500, 500]
    """

    def __init__(self, text: str) -> None:
        *names, last = text.split("|")
        self.default = 1
        if last.strip().isdecimal():
            self.default = checked_cost(int(last[:20]))
        else:
            names.append(last)
        if not names:
            hint = 'To read it from the request, name a feature: "json:max_tokens" or "json:max_tokens|500"'
            raise ConfigError(f"expected a cost as a whole number from 0 to {MAX_AMOUNT:,}; got {text!r}. {hint}")
        if not self.default:
            raise ConfigError(f"expected at least 1 for a request without {names[0]}; got {text!r}")
        self.parts = tuple(map(checked_part, names))
        self._parts = tuple(map(part_of, self.parts))

    def read(self, features: Features) -> int:
        """Return the cost of a request: a whole number from 1 to 10**12."""
        for part in self._parts:
            if (value := part.value(features)) is not None:
                number = part.exact(value) if not isinstance(value, int | float | Decimal) else value
                return MAX_AMOUNT if number is INVALID else number_of(number) or self.default
        return self.default


def parse_cost(cost: object) -> object:
    """Return the cost of a rule: a number, a feature or a function."""
    if isinstance(cost, str):
        return FeatureCost(cost)
    if not callable(cost):
        return checked_cost(cost)
    if inspect.iscoroutinefunction(cost):
        raise ConfigError(f"expected a function that is not async; got {cost!r}")
    return checked_call(cost, "the request or message")


def number_of(value: Any) -> int | None:
    """Return a number from 0, rounded up and at most 10**12; None for anything else, such as True.

    >>> [number_of(value) for value in ("150", " 2.5 ", "1e9999999", 0, -1, float("nan"), True, "")]
    [150, 3, 1000000000000, 0, None, None, None, None]
    """
    if isinstance(value, bool):
        return None
    try:
        number = Decimal(value)
    except ArithmeticError:  # no number, or an exponent that no decimal can have
        try:
            number = Decimal(float(value))
        except ValueError:
            return None
    if number.is_nan() or number < 0:
        return None
    return MAX_AMOUNT if number > MAX_AMOUNT else int(number.to_integral_value(ROUND_CEILING))
