"""Allow and deny lists. They decide a request before all rules, the allow list first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ..errors import ConfigError, error_path
from ..keys.email import compared, spellings
from ..keys.features import INVALID, Features
from ..keys.networks import Networks, parse_network
from ..keys.parts import checked_part, feature_of, part_of
from .declaration import check_names
from .paths import PathSet, checked_pattern

_KINDS: Final = ("allow", "deny")


class _Entry(NamedTuple):
    """The values of one part in one list; networks when the part is ``ip``, patterns when it is ``path``."""

    kind: str
    part: str
    values: frozenset[str] | Networks | PathSet


@dataclass(init=False, repr=False)
class AccessLists:
    """The allow and the deny list, from ``{"allow": {"ip": ["10.0.0.0/8"]}, "deny": {"user": ["mallory"]}}``.

    >>> lists = AccessLists({"deny": {"ip": ["203.0.113.0/24"]}})
    >>> lists.needs, lists.allows({"ip": "203.0.113.9"}), lists.allows({"ip": "192.0.2.7"})
    (('ip',), False, None)
    """

    entries: list[_Entry]
    needs: tuple[str, ...]

    def __init__(self, tables: Mapping[str, Mapping[str, Any]] | None = None, exempt: Sequence[str] = ()) -> None:
        tables = tables or {}
        check_names(tables, _KINDS, "list")
        self.entries = []
        for kind in _KINDS:
            for name, values in tables.get(kind, {}).items():
                with error_path(kind):
                    part = checked_part(name, in_key=False)
                with error_path(f"{kind}.{name}"):
                    self.entries.append(_parse(kind, part, values))
        if exempt:  # after the deny list, which also applies to these paths
            self.entries.append(_Entry("exempt", "path", PathSet(tuple(exempt))))
        self.exempt = tuple(exempt)
        self.parts = tuple(dict.fromkeys(entry.part for entry in self.entries))
        self.needs = tuple(dict.fromkeys(map(feature_of, self.parts)))

    def names(self, kind: str) -> list[str]:
        """The features in the list "allow" or "deny"."""
        return [entry.part for entry in self.entries if entry.kind == kind]

    def allows(self, features: Features) -> bool | None:
        """Return True when the request is on the allow list, False when on the deny list, None when on neither.

        An invalid feature is on the deny list, so that a client cannot evade the list. The deny list matches all
        spellings of a value, the allow list only the one in the settings. Exempt paths come last.
        """
        for entry in self.entries:
            part, denies = part_of(entry.part), entry.kind == "deny"
            text = part.compared(features) if denies else part.written(features)
            if text in entry.values or (denies and text is INVALID):
                return not denies
        return None


def _parse(kind: str, part: str, values: Any) -> _Entry:
    items = [values] if isinstance(values, str) else values
    if not isinstance(items, list | tuple) or not items:
        raise ConfigError(f"expected a list of values; got {values!r}")
    if part == "path":
        return _Entry(kind, part, PathSet(tuple(map(checked_pattern, items))))
    if part == "ip":
        return _Entry(kind, part, Networks(map(parse_network, items)))
    written = frozenset(spelling for item in items for spelling in spellings(part, str(item)))
    return _Entry(kind, part, compared(part, written) if kind == "deny" else written)
