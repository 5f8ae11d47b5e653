"""What an address of an LMDB environment says, read and checked without its library."""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote

from ...errors import ConfigError

__all__ = ["OPTIONS", "ParsedAddress", "checked_size", "parse_address"]

_UNITS: Final = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SMALLEST: Final = 4 << 20

OPTIONS: Final = ("size", "durable")


class ParsedAddress(NamedTuple):
    """Where the environment is, how many bytes it may take, and whether changes are on the disk when they are told."""

    path: str
    size: int
    durable: bool


def parse_address(address: SplitResult, options: dict[str, str]) -> ParsedAddress:
    """What ``lmdb:///var/lib/app/ratelimit?size=1GiB&durable=true`` says."""
    path = unquote(address.path)
    if address.netloc or address.fragment or not path.startswith("/") or "\0" in path:
        raise ConfigError("lmdb:// is followed by the absolute path of a directory: lmdb:///var/lib/app/ratelimit")
    durable = options.get("durable", "false")
    if durable not in ("true", "false"):
        raise ConfigError(f"durable is true or false; got {durable!r}")
    return ParsedAddress(path, checked_size(_bytes(options.get("size", "1GiB"))), durable == "true")


def checked_size(size: int) -> int:
    """The size itself; ``ConfigError`` for one that LMDB cannot do with."""
    if type(size) is not int or size < _SMALLEST:
        raise ConfigError(f"the size is a whole number of bytes from 4 MiB on; got {size!r}")
    return size


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d{1,15})\s*([kmgt]ib)?", text.strip().lower(), re.ASCII)
    if found is None:
        raise ConfigError(f'size is a number of bytes such as "1GiB", "64MiB" or "1048576"; got {text!r}')
    return int(found[1]) * _UNITS[found[2] or ""]
