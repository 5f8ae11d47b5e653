"""Keyed digests that replace personal features in keys, so that the store holds no personal data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from ..errors import ConfigError
from .features import is_email

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
    def from_text(cls, text: str, names: Iterable[str] = PERSONAL) -> Secret:
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
