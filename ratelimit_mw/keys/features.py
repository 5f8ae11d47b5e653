"""Names of features, and composing a key from their values so that no two different sets share one.

A feature is what is known of a request, by name. ``None``, ``""`` and absence all mean: unknown.
"""

from __future__ import annotations

import difflib
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final

from ..errors import ConfigError, placed
from .networks import unmapped

__all__ = [
    "BUILT_IN",
    "Digest",
    "UNKNOWN_IP",
    "UnknownIP",
    "UNMATCHED",
    "INVALID",
    "Features",
    "KeyMaker",
    "checked_name",
    "counted_as",
    "parse_key",
    "text_of",
]

Features = Mapping[str, Any]
"""Feature values by name. Values that are not text are taken by their ``str``."""

BUILT_IN: Final = ("ip", "user", "email", "endpoint", "region", "method", "path", "host", "group", "plan")
_FAMILIES: Final = ("header", "cookie", "query", "json", "form", "path")

UNKNOWN_IP: Final = "unknown"
"""The one value of ``ip`` for requests without an address."""

UNMATCHED: Final = "unmatched"
"""The one value of ``endpoint`` for requests that no route matched."""

INVALID: Final = object()
"""The value of a feature that is there but cannot be read. No text equals it, so no client can choose it."""

# django-ratelimit's names of the same things.
_ALSO_CALLED: Final = {"get": "query", "post": "form"}
_IN_KEYS: Final = {"user_or_ip": "user|ip"}

_NAME = re.compile(
    r"[a-z_][a-z0-9_]*|(?:" + "|".join((*_FAMILIES, *_ALSO_CALLED)) + r"):[A-Za-z0-9_.$\[\]-]+", re.ASCII
)
_OWN = "; a function of yours is given by features={NAME: function}, and the key says NAME"
_LONGEST_PART: Final = 64
_log = logging.getLogger("ratelimit_mw")


def checked_name(name: object, also: Iterable[str] = ()) -> str:
    """The name of a feature, in its one spelling; ``ConfigError`` for nonsense and near misses.

    >>> checked_name("header:X-API-Key"), checked_name("post:username")
    ('header:x-api-key', 'form:username')

    A name of your own is any word that is not a misspelt built-in one: a typo must not become "unknown".
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name.strip()):
        families = ", ".join(f"{family}:NAME" for family in _FAMILIES)
        own = _OWN * (isinstance(name, str) and "." in name)
        raise ConfigError(
            f"expected a feature, one of {', '.join(BUILT_IN)}, {families} or your own; got {name!r}{own}"
        )
    name = name.strip()
    if name in _IN_KEYS:
        raise ConfigError(f"{name!r} stands in keys, for {_IN_KEYS[name]!r}; it is no feature")
    family, colon, rest = name.partition(":")
    known = (*BUILT_IN, *also)
    if not colon and name not in known and (close := difflib.get_close_matches(name, known, 1, 0.75)):
        raise ConfigError(
            f"unknown feature {name!r}: did you mean {close[0]!r}? (a name of your own must not look like it)"
        )
    return f"{_ALSO_CALLED.get(family, family)}{colon}{rest.lower() if family == 'header' else rest}"


def parse_key(key: object) -> tuple[tuple[str, ...], ...]:
    """The entries of a rule's ``key``, each with its alternatives.

    >>> parse_key(["endpoint", "user|ip"])
    (('endpoint',), ('user', 'ip'))
    """
    entries = [key] if isinstance(key, str) else key
    if not isinstance(entries, list | tuple):
        own = _OWN * callable(key)
        raise ConfigError(f'expected a list of features such as ["endpoint", "user|ip"]; got {key!r}{own}')
    found = []
    for i, entry in enumerate(entries):
        with placed(f"[{i}]"):
            if not isinstance(entry, str):
                own = _OWN * callable(entry)
                raise ConfigError(f'expected a feature such as "ip" or "user|ip"; got {entry!r}{own}')
            names = "|".join(_IN_KEYS.get(name.strip(), name) for name in entry.split("|"))
            found.append(tuple(checked_name(name) for name in names.split("|")))
    return tuple(found)


class Digest(str):
    """What stands in a key for a value that shall not."""

    __slots__ = ()


class UnknownIP:
    """Says once that a request had no address, however many makers of keys have it between them."""

    def __init__(self) -> None:
        self._said = threading.Lock()

    def warn(self) -> None:
        if self._said.acquire(blocking=False):
            _log.warning(
                "a request has no client address; all such requests share the ip %r."
                " Behind a Unix socket, add 'unix' to trusted_proxies",
                UNKNOWN_IP,
            )


class KeyMaker:
    """Makes the part of a key that tells clients apart.

    >>> KeyMaker(parse_key(["endpoint", "user|ip"]), "/login").of({"ip": "192.0.2.7"})
    'endpoint=6:/login&ip=192.0.2.7'
    """

    def __init__(
        self, entries: tuple[tuple[str, ...], ...], endpoint: str = UNMATCHED, unknown_ip: UnknownIP | None = None
    ) -> None:
        last = len(entries) - 1
        self._entries = tuple(
            (_reachable(names), _fallback(names, endpoint), i == last) for i, names in enumerate(entries)
        )
        self._unknown_ip = unknown_ip or UnknownIP()
        self._only = entries[0][0] if len(entries) == 1 and len(entries[0]) == 1 else None

    def after(self, prefix: str) -> Callable[[Features], str | None]:
        """``of`` with a prefix, with the common case made short: one feature whose value is a short text."""
        only, start = self._only, f"{prefix}{self._only}="
        is_text = only != "ip"

        def made(features: Features) -> str | None:
            value = features.get(only)  # type: ignore[arg-type]
            if type(value) is str and value and len(value) <= _LONGEST_PART and value.isascii():
                return start + (value if is_text or ":" not in value else unmapped(value))
            key = self.of(features)
            return None if key is None else prefix + key

        return made

    def of(self, features: Features) -> str | None:  # noqa: C901 - every call counts here
        """The key part, or None when all alternatives of an entry are unknown."""
        made = ""
        for names, fallback, last in self._entries:
            for name in names:
                value = features.get(name)
                if value is not None and value != "":
                    break
            else:
                if fallback is None:
                    return None
                name, value = fallback
                if name == "ip":
                    self._unknown_ip.warn()
            if type(value) is not str:
                if value is INVALID:
                    made += f"{name}!&"
                    continue
                if type(value) is Digest:
                    made += f"{name}#{value}"
                    continue
                value = text_of(name, value)
            if name == "ip":
                value = counted_as(name, value)
            if len(value) > 16 and len(value.encode("utf-8", "surrogatepass")) > _LONGEST_PART:
                made += f"{name}#{self._digest(name, value)}"
            elif last:
                made += f"{name}={value}"
            else:
                # All parts but the last say how long they are: "a/b" + "c" and "a" + "b/c" differ.
                made += f"{name}={len(value)}:{value}&"
        return made

    def _digest(self, _name: str, value: str) -> str:
        return blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16, key=b"ratelimit_mw").hexdigest()


def _reachable(names: tuple[str, ...]) -> tuple[str, ...]:
    """What can be asked for before ``endpoint``, which is never unknown, ends the search."""
    return names[: names.index("endpoint") + 1] if "endpoint" in names else names


def _fallback(names: tuple[str, ...], endpoint: str) -> tuple[str, str] | None:
    """The value that stands for an entry when all its alternatives are unknown: a limit must not vanish."""
    if "endpoint" in names:
        return "endpoint", endpoint
    return ("ip", UNKNOWN_IP) if "ip" in names else None


def text_of(name: str, value: object) -> str:
    """A value's text; ``TypeError`` for an object's address, which would make every request a stranger."""
    text = str(value)
    if text.startswith("<") and " at 0x" in text:
        raise TypeError(f"the feature {name!r} needs a text, such as a name or a number; got {text}")
    return text


def counted_as(name: str, text: str) -> str:
    """A value as keys have it: one client has one, also where its IPv4 address is written as IPv6.

    >>> counted_as("ip", "::ffff:192.0.2.7"), counted_as("user", "::ffff:192.0.2.7")
    ('192.0.2.7', '::ffff:192.0.2.7')
    """
    return unmapped(text) if name == "ip" and ":" in text and len(text) <= _LONGEST_PART else text
