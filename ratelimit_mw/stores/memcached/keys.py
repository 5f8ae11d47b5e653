"""The names of values in Memcached, and their expiry. No I/O."""

from hashlib import blake2b
from typing import Final

from ...clock import SECOND, machine
from ...errors import ConfigError

_MAX_NAME: Final = 250
_MAX_HEAD: Final = 27  # b"t", a tier, a block of 16 digits, and the separators
_MAX_RELATIVE: Final = 30 * 86_400  # Memcached reads a larger number of seconds as a date.
_MAX_DATE: Final = 2**31 - 1  # It deletes a value with a later date, after January 2038, at once.
_NEVER: Final = 0
_MAX_PREFIX: Final = 50


class KeyNames:
    """Builds names: the prefix, the kind of the value, the token of the key. No two values share a name."""

    def __init__(self, prefix: str) -> None:
        if not _is_printable(prefix) or not 0 < len(prefix) <= _MAX_PREFIX:
            raise ConfigError(f"expected a prefix of 1 to {_MAX_PREFIX} printable ASCII characters; got {prefix!r}")
        self._prefix = prefix.encode()
        self._max_key = _MAX_NAME - _MAX_HEAD - len(prefix)
        self.ping = self._prefix + b"p"

    def token(self, key: str) -> bytes:
        """Return ``:`` and the key, or ``#`` and a hash of 128 bits for a key that Memcached does not accept."""
        if len(key) < self._max_key and _is_printable(key):
            return b":" + key.encode()
        return b"#" + blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest().encode()

    def state(self, token: bytes) -> bytes:
        return self._prefix + token

    def counter(self, block: tuple[int, int], token: bytes) -> bytes:
        return b"%bt%d.%d%b" % (self._prefix, *block, token)


def expiry(us: int) -> int:
    """Return the expiry of a value that must live for ``us`` microseconds."""
    seconds = -(-us // SECOND) + 2  # more, because the server's clock ticks once a second, and later where it is busy
    if seconds <= _MAX_RELATIVE:
        return seconds
    date = machine.time_ns() // 10**9 + 1 + seconds
    return date if date <= _MAX_DATE else _NEVER


def _is_printable(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text
