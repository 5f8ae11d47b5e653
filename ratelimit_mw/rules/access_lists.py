"""Allow and deny lists. They decide a request before all rules, the allow list first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..decision import EarlyVerdict, Verdict
from ..errors import ConfigError, path_of, placed, suggestion
from ..keys.email import spellings
from ..keys.features import Features, checked_name
from ..keys.networks import Network, is_in, parse_network

_KINDS: Final = ("allow", "deny")


class ListVerdict(EarlyVerdict):
    """A list decides the request. Never leaves the package."""

    def __init__(self, allowed: bool) -> None:
        super().__init__(allowed)
        self.allowed = allowed

    def verdict(self, now: int) -> Verdict:
        """The verdict of a list. It has no decisions, because no limit is involved."""
        return Verdict((), self.allowed)


class AccessLists:
    """The allow and the deny list, from ``{"allow": {"ip": ["10.0.0.0/8"]}, "deny": {"user": ["mallory"]}}``.

    >>> lists = AccessLists({"deny": {"ip": ["203.0.113.0/24"]}})
    >>> lists.needs, lists.allows({"ip": "203.0.113.9"}), lists.allows({"ip": "192.0.2.7"})
    (('ip',), False, None)
    """

    def __init__(self, tables: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        tables = tables or {}
        for kind in tables:
            if kind not in _KINDS:
                raise ConfigError(f"unknown list {kind!r}{suggestion(kind, _KINDS)}", path_of(kind))
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
            texts = frozenset(spelling for item in items for spelling in spellings(feature, str(item)))
            self._values.append((allowed, feature, texts))

    def __eq__(self, other: object) -> bool:
        """Whether both decide alike, for comparing settings."""
        return isinstance(other, AccessLists) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def networks(self) -> list[tuple[str, tuple[Network, ...]]]:
        """The networks of each list, with the path in the settings, such as "deny.ip"."""
        return [("allow.ip" if allowed else "deny.ip", networks) for allowed, networks in self._networks]

    def names(self) -> tuple[list[str], list[str]]:
        """The features in the allow list, and those in the deny list."""
        pairs = [(allowed, "ip") for allowed, _ in self._networks] + [
            (allowed, name) for allowed, name, _ in self._values
        ]
        return [name for allowed, name in pairs if allowed], [name for allowed, name in pairs if not allowed]

    def allows(self, features: Features) -> bool | None:
        """Return True when the request is on the allow list, False when on the deny list, None when on neither."""
        result: bool | None = None
        client = features.get("ip")
        for allowed, networks in self._networks:
            if client and is_in(str(client), networks):
                if allowed:
                    return True
                result = False
        for allowed, name, values in self._values:
            value = features.get(name)
            if value is not None and str(value) in values:
                if allowed:
                    return True
                result = False
        return result

    def check(self, features: Features) -> None:
        """Raise ``ListVerdict`` when a list decides the request."""
        if (allowed := self.allows(features)) is not None:
            raise ListVerdict(allowed)
