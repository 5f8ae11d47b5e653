"""The LMDB store: all worker processes of one machine count together, exactly, without a server, across restarts."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, unquote

from ...errors import ConfigError
from .store import LmdbStore

__all__ = ["OPTIONS", "LmdbStore", "open_address"]

_UNITS: Final = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}

OPTIONS: Final = ("size", "durable")


def open_address(address: SplitResult, options: dict[str, str], timeout_us: int) -> LmdbStore:
    """``lmdb:///var/lib/app/ratelimit?size=1GiB&durable=true``."""
    path = unquote(address.path)
    if address.netloc or address.fragment or not path.startswith("/") or "\0" in path:
        raise ConfigError("lmdb:// is followed by the absolute path of a directory: lmdb:///var/lib/app/ratelimit")
    durable = options.get("durable", "false")
    if durable not in ("true", "false"):
        raise ConfigError(f"durable is true or false; got {durable!r}")
    return LmdbStore(path, _bytes(options.get("size", "1GiB")), durable == "true", timeout_us)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d{1,15})\s*([kmgt]ib)?", text.strip().lower(), re.ASCII)
    if found is None:
        raise ConfigError(f'size is a number of bytes such as "1GiB", "64MiB" or "1048576"; got {text!r}')
    return int(found[1]) * _UNITS[found[2] or ""]
