"""Single clients, as an operator names them: their keys, their overrides, and bans from all rules. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Final

import msgspec

from ..clock import SECOND, Clock
from ..decision import without_hash_tag
from ..errors import ConfigError
from ..keys.features import INVALID, Features
from ..keys.key import KeyMaker, Secret
from ..keys.parts import checked_part, feature_of, part_of
from .compiled import CompiledRule

_NO_DATE: Final = 253_402_300_800 * SECOND
"""The year 10,000, which no date can be in."""


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
    until_us: Annotated[int, msgspec.Meta(lt=_NO_DATE)] | None = None
    by: tuple[str, ...] = ()

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
        by_parts: dict[tuple[str, ...], dict[str, ClientOverride]] = {}
        for each in bans:
            by_parts.setdefault(each.by, {})[each.key] = each
        self._tables = [(list(map(feature_of, by)), _maker(by, secret), own) for by, own in by_parts.items()]
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
    by = tuple(sorted(checked_part(name, in_key=False) for name in named))
    if invalid := [part for part in by if part_of(part).compared(features) in (INVALID, None)]:
        raise ConfigError(f"{invalid[0]} cannot have this value")
    return ClientOverride("", _maker(by, secret).build(features) or "", "", until_us, by)


def _maker(by: Iterable[str], secret: Secret) -> KeyMaker:
    return KeyMaker(tuple((part,) for part in by), secret=secret)


def client_key(rule: CompiledRule, features: Features, is_exact: bool = False) -> str:
    """Return the part of the keys of a rule that names a client with these features.

    Requests without an IP address count as ``unknown``. Here, the feature is missing. With ``is_exact``, a feature
    without use is an error, because it may be misspelt.
    """
    if missing_in_key(rule, features) or (is_exact and features.keys() - features_of(rule)):
        raise no_key(rule, features)
    given = rule.captures.add(features)
    for names in rule.source.entries:
        part = next(part for part in map(part_of, names) if part.value(given) is not None)
        if part.compared(given) is INVALID:
            raise ConfigError(f"{part.text} of rule {rule.name!r} cannot have this value")
    return rule.build_key(given) or ""


def no_key(rule: CompiledRule, features: Features) -> ConfigError:
    """Return the error for features that make no key of a rule."""
    used = features_of(rule)
    if unused := [name for name in features if name not in used]:
        entries = words_of_entries(rule.source.entries) or "one limit for all clients"
        hint = similar_names(unused, used)
        problem = f"rule {rule.name!r} does not use {' and '.join(unused)}.{hint} Its key is: {entries}"
    else:
        problem = f"the key of rule {rule.name!r} needs {words_of_entries(missing_in_key(rule, features))}"
    return ConfigError(problem)


def missing_in_key(rule: CompiledRule, features: Features) -> list[tuple[str, ...]]:
    """Return the entries of a rule's key without a value, each with its alternatives."""
    given = rule.captures.add(features)
    return [names for names in rule.source.entries if all(part_of(name).value(given) is None for name in names)]


def features_of(rule: CompiledRule) -> set[str]:
    """Return the features that a rule uses, with those that have the parameters of its path patterns."""
    return {*rule.source.needs, *rule.captures.names, *(["path"] if rule.captures.names else [])}


def similar_names(names: Iterable[str], known: Iterable[str]) -> str:
    """Return a sentence with the known features that have a similar name; "" without any."""
    known = list(known)
    similar = (other for name in names for other in difflib.get_close_matches(name, known, 1, 0.75))
    return f" Did you mean {' and '.join(found)}?" if (found := dict.fromkeys(similar)) else ""


def words_of_entries(entries: Iterable[Sequence[str]]) -> str:
    """Return entries of a key as text, such as "email and user|ip"."""
    return " and ".join(map("|".join, entries))
