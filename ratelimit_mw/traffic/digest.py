"""The hash function of the sketches. Pure, no I/O."""

from __future__ import annotations

import secrets
from hashlib import sha1


def create_salt() -> str:
    """Return a salt for a new log. A client that does not know the salt cannot choose names that collide."""
    return secrets.token_hex(16)


def digest_of(salt: str, name: str) -> bytes:
    """Return 20 bytes that look random: SHA-1 of the salt and the name, since a script of Redis has no other hash."""
    return sha1(f"{salt}{name}".encode(), usedforsecurity=False).digest()
