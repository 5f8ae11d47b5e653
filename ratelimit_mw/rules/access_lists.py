"""Allow and deny lists. They decide a request before all rules, the allow list first."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ..errors import ConfigError, error_path
from ..keys.email import spellings
from ..keys.features import INVALID, Features, checked_name
from ..keys.networks import Networks, parse_network
from .declaration import check_names

_KINDS: Final = ("allow", "deny")


class _Entry(NamedTuple):
    """The values of one feature in one list; networks when the feature is ``ip``."""

    kind: str
    feature: str
    values: frozenset[str] | Networks


@dataclass(init=False, repr=False)
class AccessLists:
    """The allow and the deny list, from ``{"allow": {"ip": ["10.0.0.0/8"]}, "deny": {"user": ["mallory"]}}``.

    >>> lists = AccessLists({"deny": {"ip": ["203.0.113.0/24"]}})
    >>> lists.needs, lists.allows({"ip": "203.0.113.9"}), lists.allows({"ip": "192.0.2.7"})
    (('ip',), False, None)
    """

    entries: list[_Entry]
    needs: tuple[str, ...]

    def __init__(self, tables: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        tables = tables or {}
        check_names(tables, _KINDS, "list")
        self.entries = []
        for kind in _KINDS:
            for name, values in tables.get(kind, {}).items():
                with error_path(kind):
                    feature = checked_name(name)
                with error_path(f"{kind}.{name}"):
                    self.entries.append(_parse(kind, feature, values))
        self.needs = tuple(dict.fromkeys(entry.feature for entry in self.entries))

    def names(self, kind: str) -> list[str]:
        """The features in the list "allow" or "deny"."""
        return [entry.feature for entry in self.entries if entry.kind == kind]

    def allows(self, features: Features) -> bool | None:
        """Return True when the request is on the allow list, False when on the deny list, None when on neither.

        An invalid feature is on the deny list, so that a client cannot evade it.
        """
        for entry in self.entries:
            value = features.get(entry.feature)
            if value is INVALID:
                if entry.kind == "deny":
                    return False
            elif value is not None and str(value) in entry.values:
                return entry.kind == "allow"
        return None


def _parse(kind: str, feature: str, values: Any) -> _Entry:
    items = [values] if isinstance(values, str) else values
    if not isinstance(items, list | tuple) or not items:
        raise ConfigError(f"expected a list of values; got {values!r}")
    if feature == "ip":
        return _Entry(kind, feature, Networks(map(parse_network, items)))
    return _Entry(kind, feature, frozenset(spelling for item in items for spelling in spellings(feature, str(item))))
