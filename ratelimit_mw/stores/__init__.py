"""The stores by address. One file each, imported when an address names it, so its library may be missing till then."""

from __future__ import annotations

from importlib import import_module
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from ..errors import ConfigError, MissingExtraError
from .base import Store, decide_all
from .memory import MemoryStore

__all__ = ["MemoryStore", "Store", "decide_all", "open_store"]

# scheme: (module here, extra that installs its library). A module has OPTIONS, the names of its query parameters,
# and open_address(split address, {option: text}, timeout in microseconds) -> Store.
_OPENERS: Final[dict[str, tuple[str, str]]] = {
    "memory": ("memory", ""),
    "lmdb": ("lmdb", "lmdb"),
    "redis": ("redis", "redis"),
    "rediss": ("redis", "redis"),
    "valkey": ("redis", "redis"),
    "unix": ("redis", "redis"),
    "redis+sentinel": ("redis", "redis"),
    "rediss+sentinel": ("redis", "redis"),
    "redis+cluster": ("redis", "redis"),
    "rediss+cluster": ("redis", "redis"),
    "memcached": ("memcached", ""),
}
# As `limits` calls them.
_ALSO_CALLED: Final = {
    "redis+unix": "unix",
    "valkey+unix": "unix",
    "valkeys": "rediss",
    "valkey+sentinel": "redis+sentinel",
    "valkey+cluster": "redis+cluster",
}


def open_store(address: str, timeout_us: int = 50_000) -> Store:
    """The store at an address such as ``memory://?max_keys=100000``, each call on it bounded by ``timeout_us``.

    ``ConfigError`` for an unknown scheme or option, ``MissingExtraError`` when its library is not installed;
    neither shows what may hold a password.
    """
    try:
        split = urlsplit(address)
    except ValueError as error:
        raise ConfigError(f"expected the address of a store: {error}") from None
    split = split._replace(scheme=_ALSO_CALLED.get(split.scheme, split.scheme))
    if split.scheme not in _OPENERS:
        known = ", ".join(f"{scheme}://" for scheme in _OPENERS)
        raise ConfigError(f"expected the address of a store, one of {known}; got the scheme {split.scheme!r}")
    name, extra = _OPENERS[split.scheme]
    try:
        module = import_module(f".{name}", __package__)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"the store {split.scheme}://", extra) from error
    options: dict[str, str] = {}
    for option, value in parse_qsl(split.query, keep_blank_values=True):
        if option not in module.OPTIONS:
            shown = repr(option) if option.isidentifier() else "of this name"  # it may be the end of a password
            raise ConfigError(f"{split.scheme}:// has no option {shown}; it has {', '.join(module.OPTIONS)}")
        if option in options:
            raise ConfigError(f"{split.scheme}:// has its option {option!r} twice")
        options[option] = value
    store: Store = module.open_address(split, options, timeout_us)
    return store
