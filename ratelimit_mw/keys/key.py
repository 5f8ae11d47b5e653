"""Build keys from features, so that two different sets of values never share a key. Knows no stores."""

import logging
import re
from collections.abc import Callable
from functools import cache
from typing import Final

from ..errors import ConfigError, error_path
from .features import INVALID, KEY_ALIASES, UNKNOWN_IP, UNMATCHED, USE_FEATURES, Features, checked_name, text_of
from .networks import canonical_ip, widened
from .secret import NO_SECRET, Secret

_LONGEST_PART: Final = 64  # bytes; a longer value is replaced by its digest
_WIDE_IP = re.compile(r"ip/([1-9]\d{0,2})(?:/([1-9]\d{0,2}))?", re.ASCII)
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
            parsed.append(tuple(_checked_part(name.strip()) for name in names.split("|")))
    return tuple(parsed)


def feature_of(part: str) -> str:
    """Return the feature that a part of a key is read from.

    >>> feature_of("ip/48"), feature_of("path:id")
    ('ip', 'path:id')
    """
    return part.partition("/")[0]


@cache
def ip_prefixes(part: str) -> tuple[int, int]:
    """Return the bits of IPv4 and of IPv6 addresses that a part counts by. One number below 32 is that of IPv4.

    >>> ip_prefixes("ip/24"), ip_prefixes("ip/48"), ip_prefixes("ip/24/48"), ip_prefixes("ip")
    ((24, 128), (32, 48), (24, 48), (32, 128))
    """
    numbers = [int(number) for number in part.split("/")[1:]]
    if len(numbers) == 1:
        numbers = [numbers[0], 128] if numbers[0] < 32 else [32, numbers[0]]
    ipv4, ipv6 = numbers or (32, 128)
    return ipv4, ipv6


def _checked_part(part: str) -> str:
    if not part.startswith("ip/"):
        return checked_name(part)
    ipv4, ipv6 = ip_prefixes(part) if _WIDE_IP.fullmatch(part) else (0, 0)
    if not (1 <= ipv4 <= 32 and 1 <= ipv6 <= 128):
        raise ConfigError(f'expected "ip/24" (IPv4), "ip/48" (IPv6) or "ip/24/48"; got {part!r}')
    return part


def warn_of_unknown_ip() -> None:
    """Log a warning for requests without a client address. A limiter calls it once."""
    _log.warning(
        "a request has no client address; all such requests are counted together as ip %r."
        " Behind a Unix socket, add 'unix' to trusted_proxies",
        UNKNOWN_IP,
    )


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
        self._entries = tuple((*_entry(names, endpoint, secret), i == last) for i, names in enumerate(entries))
        self._secret = secret
        self._warn = warn
        only = entries[0][0] if len(entries) == 1 == len(entries[0]) else "/"
        self._only = None if "/" in only or only in secret.names else only

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
        key = ""
        for parts, fallback, last in self._entries:
            for part in parts:
                value = features.get(part[1])
                if value is not None and value != "":
                    name, feature, personal = part
                    break
            else:
                if fallback is None:
                    return None
                name, value = fallback
                feature, personal = feature_of(name), False
                if feature == "ip":
                    self._warn()
            if type(value) is not str:
                if value is INVALID:
                    key += f"{name}!&"
                    continue
                value = text_of(name, value)
            if feature == "ip":
                value = counted_as(name, value)
            if personal or (len(value) > 16 and len(value.encode("utf-8", "surrogatepass")) > _LONGEST_PART):
                key += f"{name}#{self._secret.digest(name, value)}"
            elif last:
                key += f"{name}={value}"
            else:
                # Every part but the last starts with its length, so "a/b" + "c" and "a" + "b/c" differ.
                key += f"{name}={len(value)}:{value}&"
        return key


_Part = tuple[str, str, bool]


def _entry(names: tuple[str, ...], endpoint: str, secret: Secret) -> tuple[tuple[_Part, ...], tuple[str, str] | None]:
    """The alternatives up to ``endpoint``, which is never missing, and the part to use when all are missing.

    An alternative is its name, its feature, and whether it is digested.
    """
    features = [feature_of(name) for name in names]
    parts = tuple((name, feature, feature in secret.names) for name, feature in zip(names, features, strict=True))
    if "endpoint" in features:
        return parts[: features.index("endpoint") + 1], ("endpoint", endpoint)
    return parts, (names[features.index("ip")], UNKNOWN_IP) if "ip" in features else None


def counted_as(name: str, text: str) -> str:
    """Return the value as it appears in keys: an IPv4 address in IPv6 form becomes IPv4, or a network with ``ip/24``.

    >>> counted_as("ip", "::ffff:192.0.2.7"), counted_as("user", "::ffff:192.0.2.7"), counted_as("ip/24", "192.0.2.7")
    ('192.0.2.7', '::ffff:192.0.2.7', '192.0.2.0/24')
    """
    if len(text) > _LONGEST_PART or feature_of(name) != "ip":
        return text
    if name != "ip":
        return widened(text, *ip_prefixes(name))
    return canonical_ip(text) if ":" in text else text
