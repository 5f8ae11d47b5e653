"""The Redis store: one script call for all hits of a request, in the server's own time. Valkey speaks the same."""

from __future__ import annotations

from urllib.parse import SplitResult

from ...errors import ConfigError
from .address import TLS_OPTIONS, Address
from .store import RedisStore

__all__ = ["OPTIONS", "RedisStore", "open_address"]

OPTIONS = ("prefix", *TLS_OPTIONS)


def open_address(split: SplitResult, options: dict[str, str], timeout_us: int) -> RedisStore:
    """The store at ``redis://``, ``rediss://``, ``valkey://``, ``unix://``, ``redis+sentinel://``, ``redis+cluster://``."""
    tls = {name: value for name, value in options.items() if name in TLS_OPTIONS}
    if tls and split.scheme != "rediss":
        raise ConfigError(f"{split.scheme}:// takes no {', '.join(tls)}: encryption is rediss://")
    return RedisStore(Address.of(split, tls), options.get("prefix", "rl:"), timeout_us)
