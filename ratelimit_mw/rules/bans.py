"""Parse the option ``ban`` of a rule. Pure."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ..algorithms.ban import MOST_REJECTIONS, BanTerms
from ..errors import ConfigError, error_path
from ..quota import parse_duration
from .declaration import check_names
from .values import parse_count, parse_positive_duration

_MOST_GROWTH: Final = 100
_LONGEST: Final = "7d"
_STATUSES: Final = (403, 429)
_EXPECTED: Final = 'expected false or a table such as {after = 10, within = "10m", for = "1h"}'


def parse_ban(value: object) -> BanTerms | None:
    """Return the terms of a ban, None for a rule without one; ``ConfigError`` for invalid terms."""
    if value is None or value is False:
        return None
    if not isinstance(value, Mapping):
        raise ConfigError(f"{_EXPECTED}; got {value!r}")
    check_names(value, _PARSERS)
    for name in ("after", "within", "for"):
        if name not in value:
            raise ConfigError(f"{name} is missing. {_EXPECTED.capitalize()}")
    terms = {}
    for name, given in value.items():
        with error_path(name):
            terms[name] = _PARSERS[name](given)
    first = terms["for"]
    longest = terms.get("max", max(first, parse_duration(_LONGEST)))
    if longest < first:
        raise ConfigError(f"expected at least the duration of for, {value['for']!r}; got {value['max']!r}", "max")
    return BanTerms(terms["after"], terms["within"], first, terms.get("growth", 1), longest, terms.get("status", 429))


def _status(value: object) -> int:
    if type(value) is not int or value not in _STATUSES:
        raise ConfigError(f"expected 403 or 429; got {value!r}")
    return value


_PARSERS: Final[dict[str, Callable[[Any], int]]] = {
    "after": partial(parse_count, most=MOST_REJECTIONS),
    "within": parse_positive_duration,
    "for": parse_positive_duration,
    "growth": partial(parse_count, most=_MOST_GROWTH),
    "max": parse_positive_duration,
    "status": _status,
}
