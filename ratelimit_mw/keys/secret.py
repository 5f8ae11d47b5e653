"""Keeping personal features out of the store: keyed digests stand in keys for their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from ..errors import ConfigError
from .features import INVALID, UNMATCHED, Digest, Features, KeyMaker, UnknownIP, counted_as, text_of

__all__ = ["PERSONAL", "Secret", "key_maker"]

PERSONAL: Final = ("email", "user", "ip")
"""What is kept out of the store when there is a secret, unless the settings name other features."""

_SHORTEST: Final = 16


@dataclass(frozen=True, repr=False)
class Secret:
    """What keys the digests that stand in the store for personal features, ``names``. Holds no readable text.

    >>> Secret.of("correct horse battery staple").digest("ip", "192.0.2.7")
    '7467ce9ae3160d08175a88807684ce9c'
    >>> Secret.of("correct horse battery staple")
    Secret(...)
    """

    key: bytes = b""
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, text: str, names: Iterable[str] = PERSONAL) -> Secret:
        """``ConfigError``, which does not show the text, for one that could be guessed."""
        if len(text) < _SHORTEST:
            raise ConfigError(f"expected a secret of at least {_SHORTEST} characters; got {len(text)}")
        derived = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32, person=b"ratelimit_mw").digest()
        return cls(derived, frozenset(names))

    def digest(self, name: str, value: str) -> str:
        """128 bits; equal values of two features have two digests, so that a store does not tell who is who."""
        text = f"{name}\0{value}".encode("utf-8", "surrogatepass")
        return blake2b(text, digest_size=16, key=self.key).hexdigest()

    def __repr__(self) -> str:
        return "Secret(...)" if self.key else "Secret()"


NO_SECRET: Final = Secret()


class _SecretKeyMaker(KeyMaker):
    """A ``KeyMaker`` whose keys hold no value of a personal feature, nor an open digest of any other."""

    def __init__(
        self, entries: tuple[tuple[str, ...], ...], endpoint: str, secret: Secret, unknown_ip: UnknownIP | None
    ) -> None:
        super().__init__(entries, endpoint, unknown_ip)
        self._hides = tuple({name for names in entries for name in names if name in secret.names})
        self._secret = secret

    def after(self, prefix: str) -> Callable[[Features], str | None]:
        if not self._hides:
            return super().after(prefix)

        def made(features: Features) -> str | None:
            key = self.of(features)
            return None if key is None else prefix + key

        return made

    def of(self, features: Features) -> str | None:
        if not self._hides:
            return super().of(features)
        seen = dict(features)
        for name in self._hides:
            value = seen.get(name)
            if value is not None and value != "" and value is not INVALID:
                text = counted_as(name, value if isinstance(value, str) else text_of(name, value))
                seen[name] = Digest(self._digest(name, text))
        return super().of(seen)

    def _digest(self, name: str, value: str) -> str:
        return self._secret.digest(name, value)


def key_maker(
    entries: tuple[tuple[str, ...], ...],
    endpoint: str = UNMATCHED,
    secret: Secret = NO_SECRET,
    unknown_ip: UnknownIP | None = None,
) -> KeyMaker:
    """What makes the keys of a rule; without a secret nobody pays for there being one."""
    if not secret.key:
        return KeyMaker(entries, endpoint, unknown_ip)
    return _SecretKeyMaker(entries, endpoint, secret, unknown_ip)
