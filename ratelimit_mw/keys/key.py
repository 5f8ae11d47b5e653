"""Build keys from features, so that two different sets of values never share a key. Knows no stores."""

import logging
from collections.abc import Callable
from typing import Final

from ..errors import ConfigError, error_path
from .features import INVALID, KEY_ALIASES, UNKNOWN_IP, UNMATCHED, USE_FEATURES, Features, checked_name, text_of
from .networks import canonical_ip
from .secret import NO_SECRET, Secret

_LONGEST_PART: Final = 64  # bytes; a longer value is replaced by its digest
_log = logging.getLogger("ratelimit_mw")


def parse_key(key: object) -> tuple[tuple[str, ...], ...]:
    """Parse a rule's ``key`` into its entries, each a tuple of alternatives.

    >>> parse_key(["endpoint", "user|ip"])
    (('endpoint',), ('user', 'ip'))
    """
    entries = [key] if isinstance(key, str) else key
    if not isinstance(entries, list | tuple):
        hint = USE_FEATURES * callable(key)
        raise ConfigError(f'expected a list of features such as ["endpoint", "user|ip"]; got {key!r}{hint}')
    parsed = []
    for i, entry in enumerate(entries):
        with error_path(f"[{i}]"):
            if not isinstance(entry, str):
                hint = USE_FEATURES * callable(entry)
                raise ConfigError(f'expected a feature such as "ip" or "user|ip"; got {entry!r}{hint}')
            names = "|".join(KEY_ALIASES.get(name.strip(), name) for name in entry.split("|"))
            parsed.append(tuple(checked_name(name) for name in names.split("|")))
    return tuple(parsed)


def warn_of_unknown_ip() -> None:
    """Log a warning for requests without a client address. A limiter calls it once."""
    _log.warning(
        "a request has no client address; all such requests are counted together as ip %r."
        " Behind a Unix socket, add 'unix' to trusted_proxies",
        UNKNOWN_IP,
    )


class Digest(str):
    """A digest that replaces a value in a key."""

    __slots__ = ()


class KeyMaker:
    """Builds the part of a key that identifies the client. With a secret, it digests personal features.

    >>> KeyMaker(parse_key(["endpoint", "user|ip"]), "/login").build({"ip": "192.0.2.7"})
    'endpoint=6:/login&ip=192.0.2.7'
    """

    def __init__(
        self,
        entries: tuple[tuple[str, ...], ...],
        endpoint: str = UNMATCHED,
        secret: Secret = NO_SECRET,
        warn: Callable[[], None] = warn_of_unknown_ip,
    ) -> None:
        last = len(entries) - 1
        self._entries = tuple((*_entry(names, endpoint), i == last) for i, names in enumerate(entries))
        self._personal = secret.names.intersection(name for names in entries for name in names)
        self._secret = secret
        self._warn = warn
        self._only = entries[0][0] if len(entries) == 1 == len(entries[0]) and not self._personal else None

    def with_prefix(self, prefix: str) -> Callable[[Features], str | None]:
        """Return ``build`` with a prefix. One feature with a short text, the most common key, takes a short path."""
        only, start = self._only, f"{prefix}{self._only}="
        is_text = only != "ip"

        def build(features: Features) -> str | None:
            value = features.get(only)  # type: ignore[arg-type]
            if type(value) is str and value and len(value) <= _LONGEST_PART and value.isascii():
                return start + (value if is_text or ":" not in value else canonical_ip(value))
            key = self.build(features)
            return None if key is None else prefix + key

        return build

    def build(self, features: Features) -> str | None:  # noqa: C901 - on the path of every request, so one function
        """Build the key part; None when all alternatives of an entry are missing."""
        if self._personal:
            features = self._digest_personal(features)
        key = ""
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
                    self._warn()
            if type(value) is not str:
                if value is INVALID:
                    key += f"{name}!&"
                    continue
                if type(value) is Digest:
                    key += f"{name}#{value}"
                    continue
                value = text_of(name, value)
            if name == "ip":
                value = counted_as(name, value)
            if len(value) > 16 and len(value.encode("utf-8", "surrogatepass")) > _LONGEST_PART:
                key += f"{name}#{self._secret.digest(name, value)}"
            elif last:
                key += f"{name}={value}"
            else:
                # Every part but the last starts with its length, so "a/b" + "c" and "a" + "b/c" differ.
                key += f"{name}={len(value)}:{value}&"
        return key

    def _digest_personal(self, features: Features) -> Features:
        digested = dict(features)
        for name in self._personal:
            value = digested.get(name)
            if value is not None and value != "" and value is not INVALID:
                text = counted_as(name, value if isinstance(value, str) else text_of(name, value))
                digested[name] = Digest(self._secret.digest(name, text))
        return digested


def _entry(names: tuple[str, ...], endpoint: str) -> tuple[tuple[str, ...], tuple[str, str] | None]:
    """The alternatives up to ``endpoint``, which is never missing, and the feature to use when all are missing."""
    if "endpoint" in names:
        return names[: names.index("endpoint") + 1], ("endpoint", endpoint)
    return names, ("ip", UNKNOWN_IP) if "ip" in names else None


def counted_as(name: str, text: str) -> str:
    """Return the value as it appears in keys: an IPv4 address in IPv6 form becomes IPv4.

    >>> counted_as("ip", "::ffff:192.0.2.7"), counted_as("user", "::ffff:192.0.2.7")
    ('192.0.2.7', '::ffff:192.0.2.7')
    """
    return canonical_ip(text) if name == "ip" and ":" in text and len(text) <= _LONGEST_PART else text
