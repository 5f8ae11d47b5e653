"""Keyed digests that replace personal features in keys, so that the store holds no personal data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from ..errors import ConfigError
from .features import INVALID, UNMATCHED, Features, text_of
from .key import Digest, KeyMaker, UnknownIP, counted_as

PERSONAL: Final = ("email", "user", "ip")
"""The features that are digested when there is a secret and the settings name no others."""

_SHORTEST: Final = 16


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
    def from_text(cls, text: str, names: Iterable[str] = PERSONAL) -> Secret:
        """Derive the key from a text. ``ConfigError``, which does not show the text, when the text is too short."""
        if len(text) < _SHORTEST:
            raise ConfigError(f"expected a secret of at least {_SHORTEST} characters; got {len(text)}")
        derived = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32, person=b"ratelimit_mw").digest()
        return cls(derived, frozenset(names))

    def digest(self, name: str, value: str) -> str:
        """Compute 128 bits from name and value, so that equal values of two features have different digests."""
        text = f"{name}\0{value}".encode("utf-8", "surrogatepass")
        return blake2b(text, digest_size=16, key=self.key).hexdigest()

    def __repr__(self) -> str:
        return "Secret(...)" if self.key else "Secret()"


NO_SECRET: Final = Secret()


class _SecretKeyMaker(KeyMaker):
    """A ``KeyMaker`` that digests personal features, and all long values, with the secret."""

    def __init__(
        self, entries: tuple[tuple[str, ...], ...], endpoint: str, secret: Secret, unknown_ip: UnknownIP | None
    ) -> None:
        super().__init__(entries, endpoint, unknown_ip)
        self._hidden = tuple({name for names in entries for name in names if name in secret.names})
        self._secret = secret

    def with_prefix(self, prefix: str) -> Callable[[Features], str | None]:
        if not self._hidden:
            return super().with_prefix(prefix)

        def build(features: Features) -> str | None:
            key = self.build(features)
            return None if key is None else prefix + key

        return build

    def build(self, features: Features) -> str | None:
        if not self._hidden:
            return super().build(features)
        digested = dict(features)
        for name in self._hidden:
            value = digested.get(name)
            if value is not None and value != "" and value is not INVALID:
                text = counted_as(name, value if isinstance(value, str) else text_of(name, value))
                digested[name] = Digest(self._digest(name, text))
        return super().build(digested)

    def _digest(self, name: str, value: str) -> str:
        return self._secret.digest(name, value)


def key_maker(
    entries: tuple[tuple[str, ...], ...],
    endpoint: str = UNMATCHED,
    secret: Secret = NO_SECRET,
    unknown_ip: UnknownIP | None = None,
) -> KeyMaker:
    """Return the key maker of a rule. Without a secret it is the plain one, at no extra cost."""
    if not secret.key:
        return KeyMaker(entries, endpoint, unknown_ip)
    return _SecretKeyMaker(entries, endpoint, secret, unknown_ip)
