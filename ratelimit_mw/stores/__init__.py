"""The stores by address. One file each; a store's own options are query parameters, checked here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ..errors import ConfigError
from .base import Store
from .memory import MemoryStore

__all__ = ["MemoryStore", "Store", "open_store"]


def _memory(address: SplitResult, options: dict[str, str]) -> Store:
    if address.netloc or address.path.strip("/"):
        raise ConfigError("memory:// has no host and no path")
    return MemoryStore(_whole("max_keys", options["max_keys"])) if "max_keys" in options else MemoryStore()


_OPENERS: Final[dict[str, tuple[Callable[[SplitResult, dict[str, str]], Store], tuple[str, ...]]]] = {
    "memory": (_memory, ("max_keys",)),
}


def open_store(address: str) -> Store:
    """The store at an address such as ``memory://?max_keys=100000``.

    ``ConfigError`` for an unknown scheme or option; it never shows what may hold a password.
    """
    split = urlsplit(address)
    if split.scheme not in _OPENERS:
        known = ", ".join(f"{scheme}://" for scheme in _OPENERS)
        raise ConfigError(f"expected the address of a store, one of {known}; got the scheme {split.scheme!r}")
    opener, known_options = _OPENERS[split.scheme]
    options = dict(parse_qsl(split.query, keep_blank_values=True))
    for name in options:
        if name not in known_options:
            raise ConfigError(f"{split.scheme}:// has no option {name!r}; it has {', '.join(known_options)}")
    return opener(split, options)


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"{name} is a whole number; got {text!r}")
    return int(text)
