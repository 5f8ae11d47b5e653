"""The names of records. All begin with a reserved prefix, so an environment may hold other data too.

Examples:
    \\xffratelimit_mw:meta:...                                    what all processes agree on, the place of the sweep
    \\xffratelimit_mw:series:<series><number>                     a chunk: 64 closed buckets of a long log
    \\xffratelimit_mw:share:1|api|gcra|1m|<number>                a state that several keys share
    \\xffratelimit_mw:state:1|api|gcra|1m|{ip=192.0.2.7}          the state of one key
    \\xffratelimit_mw:state#1|api|gcra|1m|<digest>                the state of a key that is too long for LMDB

No text in UTF-8 begins with the byte 255. Knows nothing of transactions.
"""

from hashlib import blake2b
from typing import Final

from ...algorithms.limit import prefix_of

PREFIX: Final = b"\xffratelimit_mw:"
END: Final = b"\xffratelimit_mw;"
"""The first name after all names of this package."""
META: Final = PREFIX + b"meta:"
FIRST_SWEPT: Final = PREFIX + b"series:"
"""Every record from here to ``END`` begins with its time of expiry."""
EXPIRY: Final = 8
"""The bytes of this time."""

STATE: Final = PREFIX + b"state"
SHARE: Final = PREFIX + b"share"
MAX_NAME: Final = 511
_READABLE: Final = 200


def state_name(kind: bytes, text: str, secret: bytes) -> bytes:
    """Return the name of a key's own state (``STATE``) or a shared state (``SHARE``). No two texts share one."""
    data = text.encode("utf-8", "surrogatepass")
    name = kind + b":" + data
    if len(name) <= MAX_NAME:
        return name
    limit = prefix_of(text).encode("utf-8", "surrogatepass")[:_READABLE]
    return kind + b"#" + limit + digest(data, secret).hex().encode()


def text_of(name: bytes) -> str:
    """Return the key of a state's name, without its kind."""
    return name.partition(STATE + b":")[2].decode("utf-8", "surrogatepass")


def chunk_name(series: int, number: int) -> bytes:
    """Return the name of a chunk. The chunks of one series follow each other."""
    return FIRST_SWEPT + series.to_bytes(8, "big") + number.to_bytes(8, "big")


def digest(data: bytes, secret: bytes) -> bytes:
    """Return a hash that a client without the secret cannot predict."""
    return blake2b(data, digest_size=16, key=secret).digest()
