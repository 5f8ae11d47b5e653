"""The names of records. All begin with a reserved prefix, so an environment may hold other data too.

    \\xffratelimit_mw:meta:...                                    what all processes agree on, the place of the sweep
    \\xffratelimit_mw:series:<series><number>                     a chunk: 64 closed buckets of a long log
    \\xffratelimit_mw:share:1|api|gcra|1m|<number>                a state that several keys share
    \\xffratelimit_mw:state:1|api|gcra|1m|192.0.2.7               the state of one key
    \\xffratelimit_mw:state#1|api|gcra|1m|<digest>                the state of a key that is too long for LMDB

No text in UTF-8 begins with the byte 255. Knows nothing of transactions.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from ...algorithms.limit import prefix_of

__all__ = ["END", "FIRST_SWEPT", "META", "PREFIX", "chunk_name", "shared_name", "state_name"]

PREFIX: Final = b"\xffratelimit_mw:"
END: Final = b"\xffratelimit_mw;"
"""The first name after all names of this package."""
META: Final = PREFIX + b"meta:"
FIRST_SWEPT: Final = PREFIX + b"series:"
"""Every record from here to ``END`` begins with its time of expiry."""

_STATE: Final = PREFIX + b"state"
_SHARE: Final = PREFIX + b"share"
_MAX_NAME: Final = 511
_READABLE: Final = 200


def state_name(key: str, secret: bytes) -> bytes:
    """The name of the state of a key."""
    text = key.encode("utf-8", "surrogatepass")
    name = _STATE + b":" + text
    return name if len(name) <= _MAX_NAME else _shortened(_STATE, prefix_of(key), text, secret)


def shared_name(prefix: str, key: str, shared_states: int, secret: bytes) -> bytes:
    """The name of the state that a key shares. A client without the secret cannot choose whom it shares with."""
    digest = _digest(key.encode("utf-8", "surrogatepass"), secret)
    number = b"%04x" % (int.from_bytes(digest[:8], "big") % shared_states)
    text = prefix.encode("utf-8", "surrogatepass") + number
    name = _SHARE + b":" + text
    return name if len(name) <= _MAX_NAME else _shortened(_SHARE, prefix, text, secret)


def chunk_name(series: int, number: int) -> bytes:
    """The name of a chunk. The chunks of one series follow each other."""
    return FIRST_SWEPT + series.to_bytes(8, "big") + number.to_bytes(8, "big")


def _shortened(kind: bytes, prefix: str, text: bytes, secret: bytes) -> bytes:
    """A name that shows its limit and differs for any two texts."""
    return kind + b"#" + prefix.encode("utf-8", "surrogatepass")[:_READABLE] + _digest(text, secret).hex().encode()


def _digest(text: bytes, secret: bytes) -> bytes:
    return blake2b(text, digest_size=16, key=secret).digest()
