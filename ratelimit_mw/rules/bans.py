"""Parse the option ``ban`` of a rule. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..algorithms.ban import MOST_REJECTIONS, BanTerms
from ..errors import ConfigError, error_path
from ..quota import parse_duration
from .declaration import check_names
from .options import BanOptions
from .values import parse_count

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
    check_names(value, BanOptions.__annotations__)
    for name in ("after", "within", "for"):
        if name not in value:
            raise ConfigError(f"{name} is missing. {_EXPECTED.capitalize()}")
    first = _parsed("for", value, _duration)
    longest = _parsed("max", value, _duration) if "max" in value else max(first, parse_duration(_LONGEST))
    if longest < first:
        raise ConfigError(f"expected at least the duration of for, {value['for']!r}; got {value['max']!r}", "max")
    return BanTerms(
        _parsed("after", value, lambda after: parse_count(after, MOST_REJECTIONS)),
        _parsed("within", value, _duration),
        first,
        _parsed("growth", value, lambda growth: parse_count(growth, _MOST_GROWTH)) if "growth" in value else 1,
        longest,
        _parsed("status", value, _status) if "status" in value else 429,
    )


def _parsed(name: str, value: Mapping[str, Any], parse: Callable[[Any], int]) -> int:
    with error_path(name):
        return parse(value[name])


def _duration(value: object) -> int:
    if (us := parse_duration(value)) == 0:
        raise ConfigError(f"expected a duration above 0; got {value!r}")
    return us


def _status(value: object) -> int:
    if type(value) is not int or value not in _STATUSES:
        raise ConfigError(f"expected 403 or 429; got {value!r}")
    return value
