"""Which responses count for a rule: its ``count_when`` and ``count_unless``. Pure."""

# Annotations are evaluated here, because msgspec reads them.

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Any, Final, NamedTuple, TypedDict

from ..errors import ConfigError
from .declaration import decode, option

_EVERY: Final = frozenset(range(1000))
_CODES: Final = range(100, 600)
_FORM: Final = re.compile(r"([1-5])(?:([0-9]{2})|xx)", re.ASCII | re.IGNORECASE)
_EXPECTED: Final = 'expected HTTP status codes from 100 to 599, or classes of them such as "4xx"'
_WHEN: Final = "{status = [401, 403]} or {marked = true}"
_UNLESS: Final = "{status = [302]}"

Statuses = int | str | Sequence[int | str]


class Outcomes(NamedTuple):
    """The statuses that count, None for all; and whether views mark the requests that count."""

    statuses: frozenset[int] | None = None
    is_marked: bool = False


def items_of(statuses: Any) -> Collection[Any]:
    return statuses if isinstance(statuses, list | tuple | set | frozenset) else [statuses]


def _parse_statuses(statuses: object) -> frozenset[int] | None:
    """Return the statuses of codes and classes; None for "any"."""
    return None if statuses == "any" else frozenset(status for item in items_of(statuses) for status in _codes(item))


def _codes(item: object) -> Iterator[int]:
    """The statuses of one item: 401, "401" or "4xx"."""
    match = None if isinstance(item, bool) else _FORM.fullmatch(str(item))
    if match is None or not isinstance(item, int | str):
        raise ConfigError(f"{_EXPECTED}; got {item!r}")
    first = 100 * int(match[1])
    yield from range(first, first + 100) if match[2] is None else (first + int(match[2]),)


class CountWhen(TypedDict, total=False):
    """Which responses count."""

    status: Annotated[
        Statuses,
        option('Statuses that count: `401`, a class such as `"4xx"`, or `"any"`.', read=_parse_statuses),
    ]
    marked: Annotated[bool, option('Count the requests that your view marks: `verdict["login"].count()`.')]


class CountUnless(TypedDict):
    """Which responses do not count."""

    status: Annotated[
        Statuses, option('Statuses that do not count: `302`, or a class such as `"2xx"`.', read=_parse_statuses)
    ]


def parse_count_when(table: Any) -> Outcomes:
    """Return the outcomes that count. With ``marked = true`` alone, no status does."""
    decoded = decode(CountWhen, table, _WHEN)
    if not (items_of(table.get("status", ())) or decoded["marked"]):
        raise ConfigError(f"expected {_WHEN}; got {table!r}")
    return Outcomes(decoded["status"] if "status" in table else frozenset(), bool(decoded["marked"]))


def parse_count_unless(table: Any) -> frozenset[int]:
    """Return the statuses that do not count."""
    statuses = decode(CountUnless, table, _UNLESS)["status"]
    if statuses == frozenset():
        raise ConfigError(f"expected {_UNLESS}; got {table!r}")
    return _EVERY if statuses is None else statuses


def without_statuses(counted: frozenset[int] | None, excluded: frozenset[int]) -> frozenset[int]:
    """Return the statuses that count, less those that do not."""
    counted = _EVERY if counted is None else counted
    left = counted - excluded
    if counted and left.isdisjoint(_CODES):
        raise ConfigError("no status is left to count", "status")
    return left
