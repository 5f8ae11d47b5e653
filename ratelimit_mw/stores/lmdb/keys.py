"""The names of records. All begin with one prefix, so an environment of another application is noticed.

Examples:
    \\xffratelimit_mw:meta:...                                    what all processes agree on, the place of the sweep
    \\xffratelimit_mw:share:1|api|gcra|1m|<number>                a state that several keys share
    \\xffratelimit_mw:state:1|api|gcra|1m|{ip=192.0.2.7}          the state of one key
    \\xffratelimit_mw:state#1|api|gcra|1m|<digest>                the state of a key that is too long for LMDB

No text in UTF-8 begins with the byte 255. Knows nothing of transactions.
"""

from hashlib import blake2b
from typing import Final

from ...algorithms.limit import prefix_of

PREFIX: Final = b"\xffratelimit_mw:"
META: Final = PREFIX + b"meta:"
STATE: Final = PREFIX + b"state"
SHARE: Final = PREFIX + b"share"
FIRST_SWEPT: Final = SHARE
"""Every record from here on begins with its time of expiry."""
EXPIRY: Final = 8
"""The bytes of this time."""
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


def digest(data: bytes, secret: bytes) -> bytes:
    """Return a hash that a client without the secret cannot predict."""
    return blake2b(data, digest_size=16, key=secret).digest()
