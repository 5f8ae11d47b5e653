"""``ClientBans``: the clients that an operator has banned from all rules, by the features that name them. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from ..clock import SECOND, Clock
from ..errors import ConfigError
from ..keys.features import INVALID, Features
from ..keys.key import KeyMaker
from ..keys.parts import checked_part, feature_of, part_of
from ..keys.secret import Secret


class ClientBan(NamedTuple):
    """The ban of a client from all rules: the parts of its key, the key, and the end in microseconds; None without."""

    by: tuple[str, ...]
    key: str
    until_us: int | None

    @property
    def until(self) -> float:
        """The end, in seconds since 1970; infinity for a ban without an end."""
        return math.inf if self.until_us is None else self.until_us / SECOND


class ClientBans:
    """Finds the ban of a request, by the features that each ban names."""

    def __init__(self, bans: Iterable[ClientBan], secret: Secret, clock: Clock) -> None:
        self._clock = clock
        by_parts: dict[tuple[str, ...], dict[str, ClientBan]] = {}
        for each in bans:
            by_parts.setdefault(each.by, {})[each.key] = each
        self._tables = [(list(map(feature_of, by)), _maker(by, secret), own) for by, own in by_parts.items()]
        self.parts = tuple(dict.fromkeys(part for by in by_parts for part in by))

    def find(self, features: Features) -> ClientBan | None:
        """Return the ban of a request with these features; None without one."""
        for names, maker, bans in self._tables:
            if all(features.get(name) is not None for name in names):
                ban = bans.get(maker.build(features) or "")
                if ban is not None and (ban.until_us is None or self._clock() < ban.until_us):
                    return ban
        return None


def ban_of(features: Features, known: Collection[str], secret: Secret, until_us: int | None) -> ClientBan:
    """Return the ban of the client that is named by these features.

    Raises:
        ConfigError: A feature is not ``known``, so requests need not have it, or its value is invalid.
    """
    unused = [name for name in features if name not in known]
    if unused or not features:
        message = f"no rule and no list uses {' and '.join(unused)}" if unused else "no client is named"
        raise ConfigError(f"{message}. A ban from all rules needs one of {', '.join(known)}")
    by = _parts_of(features)
    if invalid := [part for part in by if part_of(part).compared(features) in (INVALID, None)]:
        raise ConfigError(f"{invalid[0]} cannot have this value")
    return ClientBan(by, _maker(by, secret).build(features) or "", until_us)


def _parts_of(features: Features) -> tuple[str, ...]:
    """Return the parts of a key for these features, such as ``user.id`` for an attribute."""
    names = (
        f"{name}.{inner}" if inner else name
        for name, value in features.items()
        for inner in (value if isinstance(value, dict) else [""])
    )
    return tuple(sorted(checked_part(name, in_key=False) for name in names))


def _maker(by: Iterable[str], secret: Secret) -> KeyMaker:
    return KeyMaker(tuple((part,) for part in by), secret=secret)
