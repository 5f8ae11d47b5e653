"""Build keys from features, so that two different sets of values never share a key. Knows no stores.

With a secret, digests replace personal features, so that the store holds no personal data.
"""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final, Self

from ..decision import without_hash_tag
from ..errors import ConfigError, parse_each
from .features import INVALID, KEY_ALIASES, SHARED_FEATURES, UNKNOWN_IP, UNMATCHED, USE_FEATURES, Features, is_email
from .ip import canonical_ip
from .parts import EMPTY, MAX_VALUE, Part, inner, part_of

PERSONAL: Final = ("email", "user", "ip")
"""The features that are digested when there is a secret and the settings name no others."""

_SHORTEST: Final = 16
_OPEN_KEY: Final = b"ratelimit_mw"


@dataclass(frozen=True, repr=False)
class Secret:
    """The key of the digests, and the ``names`` of the features that are digested. Never shows the secret's text.

    >>> Secret.from_text("correct horse battery staple").digest("ip", "192.0.2.7")
    '7467ce9ae3160d08175a88807684ce9c'
    >>> Secret.from_text("correct horse battery staple")
    Secret(...)
    """

    key: bytes = b""
    names: frozenset[str] = frozenset()

    @classmethod
    def from_text(cls, text: str, names: Iterable[str] = PERSONAL) -> Self:
        """Derive the key from a text. ``ConfigError``, which does not show the text, when the text is too short."""
        if len(text) < _SHORTEST:
            raise ConfigError(f"expected a secret of at least {_SHORTEST} characters; got {len(text)}")
        derived = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32, person=b"ratelimit_mw").digest()
        return cls(derived, frozenset(names))

    def covers(self, feature: str) -> bool:
        """Return whether a feature is digested. ``email`` covers the email addresses in all fields."""
        return feature in self.names or (is_email(feature) and "email" in self.names)

    def digest(self, name: str, value: str) -> str:
        """Compute 128 bits, with a secret from name and value: then equal values of two features differ."""
        text = f"{name}\0{value}" if self.key else value
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=self.key or _OPEN_KEY).hexdigest()

    def __repr__(self) -> str:
        return "Secret(...)" if self.key else "Secret()"


NO_SECRET: Final = Secret()

_log = logging.getLogger("ratelimit_mw")
_ESCAPES: Final = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})
_DIGEST: Final = 32  # characters
_OTHER_ENTRIES_ERRORS: Final = (ValueError, TypeError, OverflowError, re.error)
"""The errors for a key that was built with other entries."""


def escape_braces(text: str) -> str:
    """Return a text without braces, a different one for each text. Braces in a key enclose its hash tag.

    >>> escape_braces("/items/{id}")
    '/items/%7Bid%7D'
    """
    return text.translate(_ESCAPES)


def _unescaped(text: str) -> str:
    return text.replace("%7B", "{").replace("%7D", "}").replace("%25", "%")


def parse_key(key: object) -> tuple[tuple[Part, ...], ...]:
    """Parse a rule's ``key`` into its entries, each a tuple of alternatives.

    >>> parse_key(["endpoint", "user|ip"])
    (('endpoint',), ('user', 'ip'))
    """
    entries = [key] if isinstance(key, str) else key
    if not isinstance(entries, list | tuple):
        hint = USE_FEATURES * callable(key)
        raise ConfigError(f'expected a list of features such as ["endpoint", "user|ip"]; got {key!r}{hint}')
    return parse_each(_parse_entry, entries)


def _parse_entry(entry: object) -> tuple[Part, ...]:
    if not isinstance(entry, str):
        hint = USE_FEATURES * callable(entry)
        raise ConfigError(f'expected a feature such as "ip" or "user|ip"; got {entry!r}{hint}')
    names = "|".join(KEY_ALIASES.get(name.strip(), name) for name in entry.split("|"))
    parts = tuple(map(part_of, names.split("|")))
    for part, other in pairwise(parts):
        if (feature := part.feature) in ("endpoint", "view"):
            raise ConfigError(f"{feature!r} is never missing, so {other!r} is never used. Write '{other}|{part}'")
    return parts


def warn_of_unknown_ip() -> None:
    """Log a warning for requests without a client address. A limiter calls it once."""
    _log.warning(
        "a request has no client address; all such requests are counted together as ip %r."
        " Behind a Unix socket, add 'unix' to trusted_proxies, and let your proxy send forwarded_header."
        " Over TCP, the client has left",
        UNKNOWN_IP,
    )


class KeyMaker:
    """Builds the part of a key that identifies the client. With a secret, it digests personal features.

    Braces enclose the hash tag: in a Redis Cluster, keys with one tag are on one server. The tag begins at the last of
    ``ip``, ``user`` and ``email``, which moves to the end; without them, it is the whole part.

    >>> KeyMaker(parse_key(["endpoint", "user|ip"]), "/login").build({"ip": "192.0.2.7"})
    'endpoint=6:/login&{ip=192.0.2.7}'

    ``endpoint`` is the value for requests that match no route. ``warn`` is called for one without a client address.
    """

    def __init__(
        self,
        entries: Sequence[tuple[Part, ...]],
        endpoint: str = UNMATCHED,
        secret: Secret = NO_SECRET,
        warn: Callable[[], None] = warn_of_unknown_ip,
    ) -> None:
        self._parts = tuple(entries)
        compiled = [_compile(parts, endpoint, secret) for parts in self._parts]
        self._fallbacks = [fallback for _, fallback in compiled]
        personal = [i for i, parts in enumerate(self._parts) if any(map(_is_personal, parts))]
        if personal:
            compiled.append(compiled.pop(personal[-1]))
        last, first = len(compiled) - 1, len(compiled) - 1 if personal else 0
        self._entries = tuple((*entry, i == first, i == last) for i, entry in enumerate(compiled))
        self._secret = secret
        digests = [secret.digest(part.name, UNKNOWN_IP) for parts in self._parts for part in parts]
        self._of_many = (UNKNOWN_IP, *digests)
        self._warn = warn
        only = self._parts[0][0] if [*map(len, self._parts)] == [1] else None
        self._only = only if only and only.shape and not secret.key else None

    def with_prefix(self, prefix: str) -> Callable[[Features], str | None]:
        """Return ``build`` with a prefix. One feature with a short text, the most common key, takes a short path."""
        only = self._only
        if only is None:
            if not prefix:
                return self.build
            return lambda features: None if (key := self.build(features)) is None else prefix + key
        name, start, is_ip, is_exact = only.name, f"{prefix}{{{only.name}=", only.shape == "ip", only.shape == "exact"

        def build(features: Features) -> str | None:
            value = features.get(name)
            if type(value) is str and value and len(value) <= MAX_VALUE and value.isascii():
                if "%" in value or "{" in value or "}" in value:
                    pass  # is escaped
                elif is_ip:
                    return f"{start}{value if ':' not in value else canonical_ip(value)}}}"
                elif is_exact:
                    return f"{start}{value}}}"
                elif value.isprintable():
                    return f"{start}{value.lower().strip()}}}"  # as comparison_form does
            key = self.build(features)
            return None if key is None else prefix + key

        return build

    def values(self, features: Features) -> list[Any]:
        """Return the value of each entry of a key that can be built: a text as it is, not its comparison form."""
        chosen = []
        for parts, fallback in zip(self._parts, self._fallbacks, strict=True):
            pairs = ((part, value) for part in parts if (value := part.value(features)) is not None)
            part, value = next(pairs, (None, fallback and fallback[1]))
            chosen.append(part.exact(value) if part is not None and type(value) is str else value)
        return chosen

    def build(self, features: Features) -> str | None:
        """Build the key part; None when all alternatives of an entry are missing."""
        key = outside = ""
        is_open = False
        for parts, fallback, first, last in self._entries:
            for part in parts:
                name, feature, attribute, shape, form, personal = part
                value = features.get(feature)
                if attribute:
                    value = inner(value, feature, attribute)
                if value or (value is not None and type(value) not in EMPTY):
                    if type(value) is not str or not (shape == "exact" or (shape == "ip" and ":" not in value)):
                        value = form(value)
                    break
            else:
                if fallback is None:
                    return None
                (name, value), personal = fallback, False
                if value is UNKNOWN_IP:
                    self._warn()
            if first:
                outside, key, is_open = key, "", False
            if (
                value is INVALID
                or personal
                or (len(value) > 16 and len(value.encode("utf-8", "surrogatepass")) > MAX_VALUE)
            ):
                key += f"{name}!&" if value is INVALID else f"{name}#{self._secret.digest(name, value)}"
            else:
                escaped = escape_braces(value) if "%" in value or "{" in value or "}" in value else value
                # Every part but the last starts with its length, so "a/b" + "c" and "a" + "b/c" differ.
                key += f"{name}={escaped}" if last else f"{name}={len(value)}:{escaped}&"
                is_open = True
        return self._tagged(outside, key, is_open)

    def _tagged(self, outside: str, key: str, is_open: bool) -> str:
        """Put the hash tag around a key, or in front of one that a client can read."""
        if not key:
            return ""  # a limit for all clients
        if is_open and self._secret.key:  # a client who knows no tag of its key cannot choose the server
            return f"{outside}{{{self._secret.digest('', key)}}}&{key}"
        return f"{outside}{{{key}}}"

    def parse(self, key: str) -> dict[str, str]:
        """Return the values in a key, by the name of their parts; none for a key that was built with other entries.

        A digest stays a digest.

        >>> KeyMaker(parse_key(["endpoint", "user|ip"])).parse("endpoint=6:/login&{ip=192.0.2.7}")
        {'endpoint': '/login', 'ip': '192.0.2.7'}
        """
        return {part.name: "invalid" if kind == "!" else value for part, kind, value in self._read(key)}

    def _read(self, key: str) -> list[tuple[Part, str, str]]:
        """Return the parts of a key, each with its kind, ``=``, ``#`` (digest) or ``!`` (invalid), and its value."""
        read, text = [], without_hash_tag(key)
        try:
            for parts, _, _, is_last in self._entries:
                name, *_ = (name for name, *_ in parts if text.startswith((f"{name}=", f"{name}#", f"{name}!")))
                kind, text = text[len(name)], text[len(name) + 1 :]
                if kind == "#":
                    value, text = text[:_DIGEST], text[_DIGEST:]
                elif kind == "!":
                    value, text = "", text[1:]
                elif is_last:
                    value = _unescaped(text)
                else:
                    # No value is longer than MAX_VALUE, so the patterns are few.
                    length, _, text = text.partition(":")
                    escaped = re.match(rf"(?:%25|%7B|%7D|[^%]){{{length}}}", text, re.DOTALL)[0]  # type: ignore[index]
                    value, text = _unescaped(escaped), text[len(escaped) + 1 :]
                read.append((part_of(name), kind, value))
        except _OTHER_ENTRIES_ERRORS:
            return []
        return read

    def names_client(self, key: str) -> bool:
        """Return whether a key has a value of the client's own. Invalid values, and ``unknown`` for an IP address, are
        those of many clients.

        >>> maker = KeyMaker(parse_key(["endpoint", "user|ip"]))
        >>> [maker.names_client(f"endpoint=6:/login&{{ip={ip}}}") for ip in ("192.0.2.7", "unknown")]
        [True, False]
        """
        if not any(text in key for text in ("!&", *self._of_many)):
            return True  # a rule with a ban has such a part
        own = (each for each in self._read(key) if each[0].feature not in SHARED_FEATURES and each[1] != "!")
        return any(part.feature != "ip" or value not in self._of_many for part, _, value in own)

    def has_invalid(self, key: str) -> bool:
        """Return whether a part of a key is invalid, so that many clients share the key.

        >>> maker = KeyMaker(parse_key(["user", "ip"]))
        >>> [maker.has_invalid(f"{{{user}ip=192.0.2.7}}") for user in ("user!&", "user=2:a!&")]
        [True, False]
        """
        return "!&" in key and any(kind == "!" for _, kind, _ in self._read(key))

    def has_values(self, key: str, features: Features) -> bool:
        """Return whether a key has the values of features that are parts of it. Other parts may have any value.

        >>> KeyMaker(parse_key(["endpoint", "user|ip"])).has_values("endpoint=6:/login&{ip=192.0.2.7}", {"user": "ann"})
        False
        """
        values = self.parse(key)
        for parts in self._parts:
            given = {
                part.name: self._text(part, value) for part in parts if (value := part.value(features)) is not None
            }
            if given and not any(values.get(name) == value for name, value in given.items()):
                return False
        return bool(values or not self._parts)

    def _text(self, part: Part, value: Any) -> str:
        """Return a value as ``parse`` returns it."""
        text = part.form(value)
        if text is INVALID:
            return "invalid"
        is_long = len(text.encode("utf-8", "surrogatepass")) > MAX_VALUE
        return self._secret.digest(part.name, text) if is_long or self._secret.covers(part.feature) else text


_Compiled = tuple[str, str, str, str, Callable[[Any], Any], bool]
_Fallback = tuple[str, str]


def _is_personal(part: Part) -> bool:
    return part.feature in ("ip", "user") or is_email(part.feature)


def _compile(parts: tuple[Part, ...], endpoint: str, secret: Secret) -> tuple[tuple[_Compiled, ...], _Fallback | None]:
    """Return the alternatives of an entry, and its fallback, which is never digested; None to skip the rule.

    An alternative is its name, feature, attribute, shape, form, and whether it is digested. A fallback is its name
    and its value.
    """
    values = {"endpoint": endpoint, "view": UNMATCHED, "ip": UNKNOWN_IP}
    fallbacks = ((part.name, values[part.feature]) for part in reversed(parts) if part.feature in values)
    compiled = tuple((p.name, p.feature, p.attribute, p.shape, p.form, secret.covers(p.feature)) for p in parts)
    return compiled, next(fallbacks, None)
