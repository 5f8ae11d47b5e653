"""The parts of ``lmdb:///var/lib/app/ratelimit?size=1GiB``, checked without importing the LMDB library."""

import re
from typing import Final
from urllib.parse import SplitResult, unquote

from ...errors import ConfigError

_UNITS: Final = {None: 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_MIN_SIZE: Final = 4 << 20

OPTIONS: Final = ("size",)


def parse_address(url: SplitResult, options: dict[str, str]) -> tuple[str, int]:
    """Parse a URL: the directory, and its largest size in bytes."""
    path = unquote(url.path)
    if url.netloc or not path.startswith("/") or "\0" in path:
        raise ConfigError("lmdb:// needs the absolute path of a directory. Write lmdb:///var/lib/app/ratelimit")
    size = options.get("size", "1GiB")
    match = re.fullmatch(r"(\d{1,15})\s*([kmgt]ib)?", size.strip().lower(), re.ASCII)
    if match is None:
        raise ConfigError(f'lmdb:// option size: expected bytes such as "1GiB" or "1048576"; got {size!r}')
    return path, check_size(int(match[1]) * _UNITS[match[2]])


def check_size(size: int) -> int:
    """Return a valid size; ``ConfigError`` for any other."""
    if type(size) is not int or size < _MIN_SIZE:
        raise ConfigError(f"lmdb:// option size: expected a whole number of bytes, at least 4 MiB; got {size!r}")
    return size
