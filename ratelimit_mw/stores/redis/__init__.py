"""The Redis store: one script call for all hits of a request, in the server's own time. Valkey speaks the same."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import SplitResult

from ...errors import ConfigError
from .address import TLS_OPTIONS, Address, database
from .store import RedisStore

__all__ = ["OPTIONS", "RedisStore", "open_address"]

OPTIONS = ("prefix", "db", *TLS_OPTIONS)


def open_address(split: SplitResult, options: dict[str, str], timeout_us: int) -> RedisStore:
    """The store at ``redis://``, ``rediss://``, ``valkey://``, ``unix://``, ``redis+sentinel://``, ``redis+cluster://``."""
    tls = {name: value for name, value in options.items() if name in TLS_OPTIONS}
    if tls and split.scheme != "rediss":
        raise ConfigError(f"{split.scheme}:// takes no {', '.join(tls)}: encryption is rediss://")
    address = Address.of(split, tls)
    if "db" in options:
        if split.scheme != "unix":
            raise ConfigError(f"{split.scheme}:// takes no db as an option: it is the path, as in redis://localhost/0")
        address = replace(address, db=database(options["db"]))
    return RedisStore(address, options.get("prefix", "rl:"), timeout_us)
