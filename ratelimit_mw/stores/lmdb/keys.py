"""Under which names things stand in an LMDB environment: all begin with a reserved prefix, so it may hold other data.

    \\xffratelimit_mw:meta:...                                    the secret, the clock, where the sweep is
    \\xffratelimit_mw:page:<series><number>                       64 closed buckets of a long log
    \\xffratelimit_mw:share:1|api|gcra|1m|<slot>                  a state that several keys share
    \\xffratelimit_mw:state:1|api|gcra|1m|192.0.2.7               a key's own state
    \\xffratelimit_mw:state#1|api|gcra|1m|<digest>                the same for a key that is too long

No text in UTF-8 begins with the byte 255. Knows nothing of transactions.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from ...algorithms.limit import prefix_of

__all__ = ["END", "FIRST_SWEPT", "PREFIX", "META", "page_name", "share_name", "state_name"]

PREFIX: Final = b"\xffratelimit_mw:"
END: Final = b"\xffratelimit_mw;"
"""The first name after all of ours."""
META: Final = PREFIX + b"meta:"
FIRST_SWEPT: Final = PREFIX + b"page:"
"""From here on everything begins with the time at which it may go."""

_STATE: Final = PREFIX + b"state:"
_LONG: Final = PREFIX + b"state#"
_SHARE: Final = PREFIX + b"share:"
_LONG_SHARE: Final = PREFIX + b"share#"
_LONGEST: Final = 511
_READABLE: Final = 200


def state_name(key: str, secret: bytes) -> bytes:
    """Where the state of a key is."""
    text = key.encode("utf-8", "surrogatepass")
    name = _STATE + text
    return name if len(name) <= _LONGEST else _shortened(_LONG, prefix_of(key), text, secret)


def share_name(prefix: str, key: str, slots: int, secret: bytes) -> bytes:
    """Where the state is that a key shares; without the secret nobody can choose neighbours."""
    digest = _digest(key.encode("utf-8", "surrogatepass"), secret)
    slot = b"%04x" % (int.from_bytes(digest[:8], "big") % slots)
    text = prefix.encode("utf-8", "surrogatepass") + slot
    name = _SHARE + text
    return name if len(name) <= _LONGEST else _shortened(_LONG_SHARE, prefix, text, secret)


def page_name(series: int, number: int) -> bytes:
    """Where a page of a series is; its pages stand side by side, in order."""
    return FIRST_SWEPT + series.to_bytes(8, "big") + number.to_bytes(8, "big")


def _shortened(kind: bytes, prefix: str, text: bytes, secret: bytes) -> bytes:
    """A name that still shows which limit it belongs to, and tells any two texts apart."""
    return kind + prefix.encode("utf-8", "surrogatepass")[:_READABLE] + _digest(text, secret).hex().encode()


def _digest(text: bytes, secret: bytes) -> bytes:
    return blake2b(text, digest_size=16, key=secret).digest()
