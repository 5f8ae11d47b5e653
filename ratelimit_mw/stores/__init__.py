"""The stores. The library of a store is imported when the store is first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ..decision import decide_all
from ..errors import MissingExtraError
from .base import Facts, KeyPage, Store
from .memory.store import MemoryStore
from .url import check_store_url, open_store

if TYPE_CHECKING:
    from .bytecall import Write
    from .bytestore import ByteStore
    from .lmdb.store import LmdbStore
    from .memcached.store import MemcachedStore
    from .postgres.store import PostgresStore
    from .redis.store import RedisStore

__all__ = ["ByteStore", "LmdbStore", "MemcachedStore", "MemoryStore", "PostgresStore", "RedisStore", "Store"]
__all__ += ["Facts", "KeyPage", "Write", "check_store_url", "decide_all", "open_store"]

# Imported at their first use, because their libraries may not be installed: module, and the extra of the library.
_LAZY: Final = {
    "ByteStore": ("bytestore", ""),
    "LmdbStore": ("lmdb.store", "lmdb"),
    "MemcachedStore": ("memcached.store", ""),
    "PostgresStore": ("postgres.store", "postgres"),
    "RedisStore": ("redis.store", "redis"),
    "Write": ("bytecall", ""),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _LAZY[name]
    try:
        return getattr(import_module(f".{module}", __package__), name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(name, extra) from error
