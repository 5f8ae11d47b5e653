"""Which responses count for a rule: its ``count_when`` and ``count_unless`` as one set of statuses."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from ..errors import ConfigError, error_path
from .declaration import check_names, parse_flag

_EVERY: Final = frozenset(range(1000))
_CODES: Final = range(100, 600)
_FORM: Final = re.compile(r"([1-5])(?:([0-9]{2})|xx)", re.ASCII | re.IGNORECASE)
_EXPECTED: Final = 'expected HTTP status codes from 100 to 599, or classes of them such as "4xx"'


def counted_statuses(count_when: object) -> frozenset[int] | None:
    """Return the statuses that count: None for all, none for ``marked = true`` alone."""
    if count_when is None:
        return None
    table = _table(count_when, ("status", "marked"), "{status = [401, 403]} or {marked = true}")
    if is_marked(table) and "status" not in table:
        return frozenset()
    if table["status"] == "any":
        return None
    return _statuses(table)


def is_marked(count_when: Any) -> bool:
    """Return whether views mark the requests that count. ``ConfigError`` for a value that is not true or false."""
    with error_path("marked"):
        return parse_flag((count_when or {}).get("marked", False))


def without_statuses(counted: frozenset[int] | None, count_unless: object) -> frozenset[int] | None:
    """Return the statuses that count, less those of ``count_unless``."""
    if count_unless is None:
        return counted
    counted = _EVERY if counted is None else counted
    left = counted - _statuses(_table(count_unless, ("status",), "{status = [302]}"))
    if counted and left.isdisjoint(_CODES):
        raise ConfigError("no status is left to count", "status")
    return left


def as_json(table: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return an option with its statuses as a list."""
    return table and {**table, **({"status": sorted(_items(table["status"]), key=str)} if "status" in table else {})}


def texts_of(table: Mapping[str, Any]) -> list[str]:
    """Return the statuses of an option as texts, and "marked" where views mark what counts."""
    return [*sorted(map(str, _items(table.get("status", ())))), *(["marked"] if is_marked(table) else [])]


def _table(value: object, names: Collection[str], expected: str) -> Mapping[str, Any]:
    table = value if isinstance(value, Mapping) else {}
    check_names(table, names)
    if not (_items(table.get("status", ())) or table.get("marked")):
        raise ConfigError(f"expected {expected}; got {value!r}")
    return table


def _items(statuses: Any) -> Collection[Any]:
    return statuses if isinstance(statuses, list | tuple | set | frozenset) else [statuses]


def _statuses(table: Mapping[str, Any]) -> frozenset[int]:
    with error_path("status"):
        return frozenset(status for item in _items(table["status"]) for status in _codes(item))


def _codes(item: object) -> Iterator[int]:
    """The statuses of one item: 401, "401" or "4xx"."""
    match = None if isinstance(item, bool) else _FORM.fullmatch(str(item))
    if match is None or not isinstance(item, int | str):
        raise ConfigError(f"{_EXPECTED}; got {item!r}")
    first = 100 * int(match[1])
    yield from range(first, first + 100) if match[2] is None else (first + int(match[2]),)
