"""Under which names things stand in a Memcached, and for how long. Pure."""

from __future__ import annotations

import time
from hashlib import blake2b
from typing import Final

from ...clock import SECOND
from ...errors import ConfigError

__all__ = ["DAY", "Life", "Names", "token_of"]

DAY: Final = 86_400 * SECOND

_LONGEST: Final = 250
_LONGEST_HEAD: Final = 36  # b"t", a tier, a bucket of 16 digits, a generation of 8, and what stands between them
_RELATIVE: Final = 30 * 86_400  # beyond, Memcached takes a number of seconds for a date
_LONGEST_PREFIX: Final = 50


def token_of(key: str, room: int) -> bytes:
    """The part of a name that tells keys apart: ``:`` and the key itself, or ``#`` and its hash where it is no name.

    Memcached takes 250 bytes of printable ASCII without spaces.
    """
    if len(key) < room and key.isascii() and key.isprintable() and " " not in key:
        return b":" + key.encode()
    return b"#" + blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest().encode()


class Names:
    """Names that start with ``prefix``, then say what the thing is, then whose. No two different things share one."""

    def __init__(self, prefix: str) -> None:
        printable = prefix.isascii() and prefix.isprintable() and " " not in prefix
        if not printable or not 0 < len(prefix) <= _LONGEST_PREFIX:
            raise ConfigError(f"the prefix is 1 to {_LONGEST_PREFIX} printable ASCII characters; got {prefix!r}")
        self._prefix = prefix.encode()
        self._room = _LONGEST - _LONGEST_HEAD - len(prefix)

    def token(self, key: str) -> bytes:
        return token_of(key, self._room)

    def state(self, token: bytes) -> bytes:
        """The state of a key, or the head of its log."""
        return self._prefix + token

    def chunk(self, number: int, token: bytes) -> bytes:
        """A sealed part of a log."""
        return b"%bc%x%b" % (self._prefix, number, token)

    def ping(self) -> bytes:
        """What is written to find out whether a server takes anything."""
        return self._prefix + b"p"

    def generation(self, token: bytes) -> bytes:
        """Says which counters of a key count, once it was forgotten."""
        return b"%bg%b" % (self._prefix, token)

    def counter(self, tier: int, block: int, generation: bytes, token: bytes) -> bytes:
        """What was counted in one block of a tier."""
        return b"%bt%d.%d%b%b" % (self._prefix, tier, block, generation, token)


class Life:
    """How long things are kept: a day at the least when the time is given, for then nobody knows how fast it goes."""

    def __init__(self, given: bool) -> None:
        self._least = DAY if given else 0

    def __call__(self, us: int) -> int:
        """The expiry of what must not go for ``us`` microseconds.

        Whole seconds and one more, as the server's clock ticks once a second; a date beyond 30 days.
        """
        seconds = -(-max(us, self._least) // SECOND) + 1
        return seconds if seconds <= _RELATIVE else int(time.time()) + 1 + seconds
