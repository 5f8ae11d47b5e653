"""Other limits for single clients, and bans from all rules: their tables, and the record that holds them. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import cache
from typing import Final

import msgspec
from msgspec.structs import asdict

from ..clock import SECOND, Clock
from ..decision import Limit, without_hash_tag
from ..errors import ConfigError
from ..keys.features import INVALID, Features
from ..keys.key import KeyMaker, Secret
from ..keys.parts import Part, part_of

_FORMAT: Final = b"ratelimit_mw overrides 1\n"


class ClientOverride(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Other limits for one client of one rule.

    Args:
        rule: The name of the rule.
        key: The client, as the keys of the store name it. With a secret, it has digests instead of personal data.
        limits: The limits, such as ``"1000/minute; 20000/day"``, or ``"unlimited"``.
        until_us: The end, in microseconds since 1970; None for an override without an end.
        by: The parts of the key of a client that is banned from all rules. Its ``rule`` and ``limits`` are "".
    """

    rule: str
    key: str
    limits: str
    until_us: int | None = None
    by: tuple[Part, ...] = ()

    @property
    def client(self) -> str:
        """The client as text, such as ``user=acme``."""
        return without_hash_tag(self.key)

    @property
    def until(self) -> float | None:
        """The end, in seconds since 1970; None for an override without an end."""
        return None if self.until_us is None else self.until_us / SECOND

    def has_ended(self, now: int) -> bool:
        return self.until_us is not None and self.until_us <= now


class ClientBans:
    """Finds the ban of a request from all rules, by the features that each ban names."""

    def __init__(self, bans: Iterable[ClientOverride], secret: Secret, clock: Clock) -> None:
        self._clock = clock
        by_parts: dict[tuple[Part, ...], dict[str, ClientOverride]] = {}
        for each in bans:
            by_parts.setdefault(each.by, {})[each.key] = each
        self._tables = [([part.feature for part in by], _maker(by, secret), own) for by, own in by_parts.items()]
        self.parts = tuple(dict.fromkeys(part for by in by_parts for part in by))

    def find(self, features: Features) -> ClientOverride | None:
        """Return the ban of a request with these features; None without one."""
        for names, maker, bans in self._tables:
            if all(features.get(name) is not None for name in names):
                ban = bans.get(maker.build(features) or "")
                if ban is not None and not ban.has_ended(self._clock()):
                    return ban
        return None


def ban_of(features: Features, known: Collection[str], secret: Secret, until_us: int | None) -> ClientOverride:
    """Return the ban of the client with these features. One that is not ``known`` is an error: requests may lack it."""
    unused = [name for name in features if name not in known]
    if unused or not features:
        message = f"no rule and no list uses {' and '.join(unused)}" if unused else "no client is named"
        raise ConfigError(f"{message}. A ban from all rules needs one of {', '.join(known)}")
    named = (
        f"{name}.{inner}" if inner else name
        for name, value in features.items()
        for inner in (value if isinstance(value, dict) else [""])
    )
    by = tuple(sorted(part_of(name, in_key=False) for name in named))
    if invalid := [part for part in by if part.compared(features) in (INVALID, None)]:
        raise ConfigError(f"{invalid[0]} cannot have this value")
    return ClientOverride("", _maker(by, secret).build(features) or "", "", until_us, by)


def _maker(by: Iterable[Part], secret: Secret) -> KeyMaker:
    return KeyMaker(tuple((part,) for part in by), secret=secret)


def dump_overrides(overrides: Iterable[ClientOverride]) -> bytes:
    """Return the record of overrides. Keys may have halves of surrogate pairs, which only escapes can hold."""
    entries = [{name: value for name, value in asdict(each).items() if value not in (None, ())} for each in overrides]
    return _FORMAT + json.dumps(entries, separators=(",", ":")).encode()


def load_overrides(data: bytes | None) -> tuple[ClientOverride, ...]:
    """Return the overrides of a record; ``ValueError`` for a damaged one."""
    if data is None:
        return ()
    if data.startswith(_FORMAT):
        with suppress(ValueError, RecursionError, msgspec.ValidationError):
            entries = json.loads(data.removeprefix(_FORMAT))
            return msgspec.convert(entries, tuple[ClientOverride, ...], dec_hook=lambda _, text: part_of(text))
    raise ValueError("the record of overrides is damaged, or of another version")


class OverrideTable:
    """The overrides of one rule, by the key of the client. ``parse`` returns the limits of a text.

    ``errors`` has the reasons why some are not active: the rule has changed since, or the process cannot decide them.
    """

    def __init__(
        self, overrides: Iterable[ClientOverride], parse: Callable[[str], tuple[Limit, ...]], clock: Clock
    ) -> None:
        self._clock = clock
        self._clients: dict[str, tuple[ClientOverride, tuple[Limit, ...]]] = {}
        self.errors: list[ConfigError] = []
        parse = cache(parse)
        for each in overrides:
            try:
                self._clients[each.key] = each, parse(each.limits)
            except ConfigError as error:
                self.errors.append(error)

    def find(self, key: str) -> tuple[Limit, ...] | None:
        """Return the limits of a client; None without an override, or after its end."""
        known = self._clients.get(key)
        if known is None or (known[0].until_us is not None and known[0].has_ended(self._clock())):
            return None
        return known[1]

    @property
    def limits(self) -> Iterable[tuple[Limit, ...]]:
        """The limits of all clients."""
        return (limits for _, limits in self._clients.values())
