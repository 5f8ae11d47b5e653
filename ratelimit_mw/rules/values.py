"""Parse the values of options: durations, words and tables, costs, bans, and the responses that count. Pure."""

# Annotations are evaluated here, because msgspec reads them.

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Final, TypedDict

from ..algorithms import checked_spec
from ..clock import SECOND
from ..decision import MAX_REJECTIONS, BanTerms
from ..errors import ConfigError
from ..keys.features import INVALID, Features
from ..keys.parts import part_of
from ..quota import MAX_AMOUNT, checked_cost, parse_duration
from .declaration import checked_call, decode, is_async, option

_PERCENT: Final = re.compile(r"(\d{1,3})%", re.ASCII)
_WORD: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)


def _duration(expected: str, is_valid: Callable[[int], bool]) -> Callable[[object], int]:
    """Make a function that parses a duration with a condition on its microseconds."""

    def parse(duration: object) -> int:
        if not is_valid(us := parse_duration(duration)):
            raise ConfigError(f"expected {expected}; got {duration!r}")
        return us

    return parse


parse_positive_duration: Final = _duration("a duration above 0", bool)
parse_whole_seconds: Final = _duration('whole seconds such as "2s"', lambda us: us % SECOND == 0)
parse_hold: Final = _duration('a duration from "1s"', lambda us: us >= SECOND)
Duration = Annotated[str | float, parse_duration]
PositiveDuration = Annotated[str | float, parse_positive_duration]


def parse_percent(share: object, most: int) -> int:
    """Return the percent of a share."""
    match = _PERCENT.fullmatch(str(share))
    if match is None or not 1 <= int(match[1]) <= most:
        raise ConfigError(f'expected a share from "1%" to "{most}%"; got {share!r}')
    return int(match[1])


def checked_algorithm(spec: Any) -> Any:
    """Return the name, the table or the class of an algorithm."""
    checked_spec(spec)
    return spec


def checked_word(word: object) -> str:
    """Return a unit or a class of requests; ``ConfigError`` for anything but a word that a header can have."""
    if not isinstance(word, str) or not _WORD.fullmatch(word):
        raise ConfigError(f'expected a word in lower case such as "tokens"; got {word!r}')
    return word


def checked_table(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"expected a table; got {value!r}")
    return value


_EXPECTED_BAN: Final = 'false or a table such as {after = 10, within = "10m", for = "1h"}'

_Ban = TypedDict(  # "for" is a keyword, so this is no class
    "_Ban",
    {
        "after": Annotated[int, option("The number of rejections that starts a ban.", ge=1, le=MAX_REJECTIONS)],
        "within": Annotated[PositiveDuration, option("The span in which these rejections occur, at most 366 days.")],
        "for": Annotated[PositiveDuration, option("The length of the first ban, at most 366 days.")],
    },
)


class BanOptions(_Ban, total=False):
    """When a client is banned from a rule, and for how long."""

    growth: Annotated[int, option("Each ban is this many times as long as the one before it.", 1, ge=1, le=100)]
    max: Annotated[
        PositiveDuration,
        option("The longest ban; `for` if that is longer. Bans are forgotten after this time without one.", "7d"),
    ]


def parse_ban(value: Any) -> BanTerms | None:
    """Return the terms of a ban, None for ``false``; ``ConfigError`` for invalid terms."""
    if value is False:
        return None
    ban = decode(BanOptions, value, _EXPECTED_BAN)
    first, longest = ban["for"], ban["max"]
    if "max" in value and longest < first:
        raise ConfigError(f"expected at least the duration of for, {value['for']!r}; got {value['max']!r}", "max")
    return BanTerms(ban["after"], ban["within"], first, ban["growth"], max(first, longest))


_EVERY: Final = frozenset(range(1000))
_CODES: Final = range(100, 600)
_FORM: Final = re.compile(r"([1-5])(?:([0-9]{2})|xx)", re.ASCII | re.IGNORECASE)
_EXPECTED_STATUS: Final = 'expected HTTP status codes from 100 to 599, or classes of them such as "4xx"'


def _parse_statuses(statuses: object) -> frozenset[int]:
    """Return the statuses of codes, of classes or of "any"."""
    items: Collection[Any] = statuses if isinstance(statuses, list | tuple | set | frozenset) else [statuses]
    return _EVERY if statuses == "any" else frozenset(status for item in items for status in _codes(item))


def _codes(item: object) -> Iterator[int]:
    """Yield the statuses of one item: 401, "401" or "4xx"."""
    match = _FORM.fullmatch(str(item))
    if match is None:
        raise ConfigError(f"{_EXPECTED_STATUS}; got {item!r}")
    first = 100 * int(match[1])
    yield from range(first, first + 100) if match[2] is None else (first + int(match[2]),)


Statuses = Annotated[int | str | Sequence[int | str], _parse_statuses]


class CountWhen(TypedDict, total=False):
    """Which responses count."""

    status: Annotated[Statuses, option('Statuses that count: `401`, a class such as `"4xx"`, or `"any"`.')]
    marked: Annotated[bool, option('Count the requests that your view marks: `verdict["login"].count()`.')]


class CountUnless(TypedDict):
    """Which responses do not count."""

    status: Annotated[Statuses, option('Statuses that do not count: `302`, or a class such as `"2xx"`.')]


def _parse_outcomes(declaration: Any, expected: str, table: Any) -> frozenset[int]:
    """Return the statuses of a table: none with ``marked = true`` alone."""
    decoded = decode(declaration, table, expected)
    if not any(decoded.values()):
        raise ConfigError(f"expected {expected}; got {table!r}")
    return decoded["status"] or frozenset()


parse_count_when: Final = partial(_parse_outcomes, CountWhen, "{status = [401, 403]} or {marked = true}")
parse_count_unless: Final = partial(_parse_outcomes, CountUnless, "{status = [302]}")


def counted_statuses(counted: frozenset[int] | None, excluded: frozenset[int] | None) -> frozenset[int] | None:
    """Return the statuses that count; None where every response counts."""
    if counted is None and excluded is None:
        return None
    statuses = _EVERY if counted is None else counted
    left = statuses - (excluded or frozenset())
    if statuses and left.isdisjoint(_CODES):
        raise ConfigError("no status is left to count", "count_unless.status")
    return None if left == _EVERY else left


class FeatureCost:
    """An estimate of the cost: the first feature that is present, else the number at the end, else 1.

    A value that is not a number above 0 counts as the number at the end. An invalid feature may have any value, so it
    has the largest cost. Each limit takes at most its own size: see ``Limit.cap``.

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
        self.parts = tuple(map(part_of, names))

    def read(self, features: Features) -> int:
        """Return the cost of a request: a whole number from 1 to 10**12."""
        for part in self.parts:
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
    if is_async(cost):
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
        number = value if isinstance(value, int) else float(value)
    except ValueError:
        return None
    return math.ceil(min(number, MAX_AMOUNT)) if number >= 0 else None  # NaN is not
