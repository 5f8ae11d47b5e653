"""Parse single values of options: durations, words and tables. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final

from ..algorithms import checked_spec
from ..clock import SECOND
from ..errors import ConfigError
from ..quota import parse_duration

_PERCENT: Final = re.compile(r"(\d{1,2})%", re.ASCII)
_UNIT: Final = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)


def parse_positive_duration(duration: object) -> int:
    if not (us := parse_duration(duration)):
        raise ConfigError(f"expected a duration above 0; got {duration!r}")
    return us


def parse_whole_seconds(duration: object) -> int:
    if (us := parse_duration(duration)) % SECOND:
        raise ConfigError(f'expected whole seconds such as "2s"; got {duration!r}')
    return us


def parse_hold(duration: object) -> int:
    if (hold := parse_duration(duration)) < SECOND:
        raise ConfigError(f'expected a duration from "1s"; got {duration!r}')
    return hold


def parse_share(share: object) -> int:
    """Return the percent of a share."""
    match = _PERCENT.fullmatch(str(share))
    if match is None or not 1 <= int(match[1]) <= 50:
        raise ConfigError(f'expected a share from "1%" to "50%"; got {share!r}')
    return int(match[1])


def checked_algorithm(spec: Any) -> Any:
    """Return the name, the table or the class of an algorithm."""
    checked_spec(spec)
    return spec


def checked_unit(unit: object) -> str:
    """Return the unit of a rule; ``ConfigError`` for anything but a word that a header can have."""
    if not isinstance(unit, str) or not _UNIT.fullmatch(unit):
        raise ConfigError(f'expected a word in lower case such as "tokens"; got {unit!r}')
    return unit


def checked_table(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"expected a table; got {value!r}")
    return value
