"""Allow and deny lists: who is never limited, and who is never served. Looked at before all rules; allow goes first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..decision import EarlyVerdict, Verdict
from ..errors import ConfigError, placed
from ..keys.email import spellings
from ..keys.features import Features, checked_name
from ..keys.networks import Network, is_in, parse_network

__all__ = ["ListVerdict", "AccessLists"]

_KINDS: Final = ("allow", "deny")


class ListVerdict(EarlyVerdict):
    """The request is on a list, and that decides it. Never leaves the package."""

    def __init__(self, allowed: bool) -> None:
        super().__init__(allowed)
        self.allowed = allowed

    def verdict(self, now: int) -> Verdict:
        """Without decisions: no limit has a say."""
        return Verdict((), self.allowed)


class AccessLists:
    """From ``{"allow": {"ip": ["10.0.0.0/8"]}, "deny": {"user": ["mallory"]}}``.

    >>> lists = AccessLists({"deny": {"ip": ["203.0.113.0/24"]}})
    >>> lists.needs, lists.allows({"ip": "203.0.113.9"}), lists.allows({"ip": "192.0.2.7"})
    (('ip',), False, None)

    ``ConfigError`` names what cannot be. How narrow a network may be is for those to say who tell clients apart.
    """

    def __init__(self, tables: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        tables = tables or {}
        for kind in tables:
            if kind not in _KINDS:
                raise ConfigError(f"expected allow or deny; got {kind!r}")
        self._networks: list[tuple[bool, tuple[Network, ...]]] = []
        self._values: list[tuple[bool, str, frozenset[str]]] = []
        names: dict[str, None] = {}
        for kind in _KINDS:
            for name, values in tables.get(kind, {}).items():
                with placed(kind):
                    feature = checked_name(name)
                names[feature] = None
                with placed(f"{kind}.{name}"):
                    self._add(kind == "allow", feature, values)
        self.needs = tuple(names)

    def _add(self, allowed: bool, feature: str, values: Any) -> None:
        items = [values] if isinstance(values, str) else values
        if not isinstance(items, list | tuple) or not items:
            raise ConfigError(f"expected a list of values; got {values!r}")
        if feature == "ip":
            self._networks.append((allowed, tuple(map(parse_network, items))))
        else:
            found = frozenset(spelling for item in items for spelling in spellings(feature, str(item)))
            self._values.append((allowed, feature, found))

    def __eq__(self, other: object) -> bool:
        """Equal lists decide alike: settings that differ in them are not the same."""
        return isinstance(other, AccessLists) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def networks(self) -> list[tuple[str, tuple[Network, ...]]]:
        """The networks of each list, with its place: "deny.ip"."""
        return [("allow.ip" if allowed else "deny.ip", networks) for allowed, networks in self._networks]

    def names(self) -> tuple[list[str], list[str]]:
        """The features that allow lists look at, and those that deny lists do."""
        found = [(allowed, "ip") for allowed, _ in self._networks] + [
            (allowed, name) for allowed, name, _ in self._values
        ]
        return [name for allowed, name in found if allowed], [name for allowed, name in found if not allowed]

    def allows(self, features: Features) -> bool | None:
        """True when the request is on an allow list, False when on a deny list, None when on neither."""
        found: bool | None = None
        client = features.get("ip")
        for allowed, networks in self._networks:
            if client and is_in(str(client), networks):
                if allowed:
                    return True
                found = False
        for allowed, name, values in self._values:
            value = features.get(name)
            if value is not None and str(value) in values:
                if allowed:
                    return True
                found = False
        return found

    def check(self, features: Features) -> None:
        """Raise ``ListVerdict`` when a list decides the request."""
        if (allowed := self.allows(features)) is not None:
            raise ListVerdict(allowed)
