"""The Redis store: one script call for all hits of a request, in the server's own time. Valkey speaks the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final
from urllib.parse import SplitResult

from ...errors import ConfigError
from .address import SENTINEL_OPTIONS, TLS_OPTIONS, Address, database, tls_of
from .store import RedisStore

__all__ = ["OPTIONS", "RedisStore", "open_address"]

OPTIONS = ("prefix", "db", *TLS_OPTIONS, *SENTINEL_OPTIONS)

# Options that only some addresses have: to which, and what to say otherwise.
_RESTRICTED: Final[tuple[tuple[tuple[str, ...], Callable[[str], bool], str], ...]] = (
    (TLS_OPTIONS, lambda scheme: scheme.startswith("rediss"), "encryption is rediss://"),
    (SENTINEL_OPTIONS, lambda scheme: scheme.endswith("+sentinel"), "sentinels are asked by redis+sentinel://"),
    (("db",), lambda scheme: scheme == "unix", "it is the path, as in redis://localhost/0"),
)


def open_address(split: SplitResult, options: dict[str, str], timeout_us: int) -> RedisStore:
    """The store at one of the addresses of docs/redis.md."""
    if split.fragment:
        raise ConfigError(
            "an address of a Redis has no #; special characters of a password are written as %23 and so on"
        )
    for names, may_have, reason in _RESTRICTED:
        if (wrong := [name for name in names if name in options]) and not may_have(split.scheme):
            raise ConfigError(f"{split.scheme}:// takes no {', '.join(wrong)}: {reason}")
    found = Address.of(split)
    address = replace(
        found,
        db=database(options["db"]) if "db" in options else found.db,
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
        tls=tls_of(options) if split.scheme.startswith("rediss") else None,
    )
    return RedisStore(address, options.get("prefix", "rl:"), timeout_us)
