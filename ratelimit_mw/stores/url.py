"""The URLs of stores. The module of a store is imported when one of its URLs is checked or opened."""

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ..errors import ConfigError, MissingExtraError, suggestion
from .base import Store, checked_store

_Address = TypeVar("_Address")

# family: (module that parses the URL, module of the store, extra that installs its library).
# The first has OPTIONS, the names of query parameters, and hint_for(scheme, option) when a scheme takes only some.
# It also has parse_address(split URL, {option: text}), which imports no library and opens no connection.
# The second has open_address(parsed, timeout in microseconds) -> Store.
_FAMILIES: Final = {
    "memory": ("memory.store", "memory.store", ""),
    "lmdb": ("lmdb.address", "lmdb.store", "lmdb"),
    "redis": ("redis.address", "redis.store", "redis"),
    "memcached": ("memcached.address", "memcached.store", ""),
    "postgres": ("postgres.address", "postgres.store", "postgres"),
}
_SCHEMES: Final = {
    "memory": "memory",
    "lmdb": "lmdb",
    **dict.fromkeys(("redis", "rediss", "valkey", "unix", "redis+sentinel", "rediss+sentinel"), "redis"),
    **dict.fromkeys(("redis+cluster", "rediss+cluster"), "redis"),
    **dict.fromkeys(("memcached", "memcacheds", "memcached+unix"), "memcached"),
    "postgresql": "postgres",
}
_PATHS: Final = ("lmdb", "unix", "memcached+unix")
"""The schemes with the path of a file."""
_LOGIN_AND_HOSTS: Final = re.compile("(?<=://)[^/?#]*")
_UNESCAPED: Final = re.compile("[?;@]|=[^&=]*=[^&=]")  # = may end a text in base64
# The names of the package limits, and of Celery.
_ALIASES: Final = {
    "redis+socket": "unix",
    "redis+unix": "unix",
    "valkey+unix": "unix",
    "valkeys": "rediss",
    "valkey+sentinel": "redis+sentinel",
    "valkey+cluster": "redis+cluster",
    "postgres": "postgresql",
}


def open_store(address: str | Store, timeout_us: int = 50_000) -> Store:
    """Open the store of a URL. A store is returned as it is.

    Args:
        address: A store URL, for example ``memory://?max_keys=100000`` or ``redis://cache:6379/0``, or a store.
        timeout_us: The time that one call on the store may take, in microseconds.

    Returns:
        The store.

    Raises:
        ConfigError: The scheme, an option or its value is invalid. The message shows no password.
        MissingExtraError: The library of the store is not installed. The message has the command that installs it.
    """
    if not isinstance(address, str):
        return checked_store(address)
    split, parsed = check_store_url(address)
    _, name, extra = _FAMILIES[_SCHEMES[split.scheme]]
    try:
        module = import_module(f".{name}", __package__)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"the store {split.scheme}://", extra) from error
    store: Store = module.open_address(parsed, timeout_us)
    store.name = redacted_url(address)
    return store


def check_store_url(url: str) -> tuple[SplitResult, Any]:
    """Check a store URL without opening the store or importing its library.

    Args:
        url: The store URL.

    Returns:
        The URL, split, and its parts as its store has parsed them.

    Raises:
        ConfigError: ``open_store`` cannot open the URL.
    """
    try:
        split = _split_url(url)
    except ValueError:  # its text may show the login
        raise ConfigError("cannot parse the store URL: its login or its host is malformed") from None
    if not split.scheme or f"{split.scheme}://" not in url.lower():  # text before a lone colon may be a login
        raise ConfigError("a store URL starts with a scheme and ://, for example redis://cache:6379/0")
    split = split._replace(scheme=_ALIASES.get(split.scheme, split.scheme))
    if split.scheme not in _SCHEMES:
        raise ConfigError(f"unknown scheme {split.scheme!r} of a store URL{suggestion(split.scheme, _SCHEMES)}")
    _check_escapes(split)
    module = import_module(f".{_FAMILIES[_SCHEMES[split.scheme]][0]}", __package__)
    return split, module.parse_address(split, _options(split, module))


def family_of(scheme: str) -> str:
    """Return the kind of store that a scheme names; "" for none."""
    return _SCHEMES.get(_ALIASES.get(scheme, scheme), "")


def parse_url_of(url: str, kind: type[_Address], example: str) -> _Address:
    """Return the parts of a store URL for a store that reads one kind of address. The example is for the error."""
    split, address = check_store_url(url)
    if not isinstance(address, kind):
        raise ConfigError(f"expected a URL such as {example}; got {split.scheme}://. Use open_store(url)")
    return address


def redacted_url(url: str | Store) -> str:
    """Return scheme, hosts and path of a store URL. Login and options, which may hold passwords, are left out.

    A store has a name in its place.

    >>> redacted_url("redis://app:secret@cache:6379/0?prefix=web:")
    'redis://cache:6379/0'
    """
    if isinstance(url, Store):
        return url.name or type(url).__name__
    split = _split_url(url)
    return f"{split.scheme}://{split.netloc.rpartition('@')[2]}{split.path}"


def _split_url(url: str) -> SplitResult:
    """Split a URL. Newer versions of Python reject brackets after the start of the hosts, as in a:1,[::1]:2."""
    url = re.sub("[\t\r\n]", "", url.strip())  # as urlsplit does
    hosts = _LOGIN_AND_HOSTS.search(url)
    return urlsplit(_LOGIN_AND_HOSTS.sub("", url, 1))._replace(netloc=hosts[0] if hosts else "")


def _check_escapes(split: SplitResult) -> None:
    """Reject a URL with characters after which a part of a login or of an option would pass for another part."""
    path = "" if split.scheme in _PATHS else split.path
    if split.fragment or _UNESCAPED.search(split.query) or "@" in path:
        raise ConfigError(
            f"a {split.scheme}:// URL has # ? ; = or @ within its login, its path or an option."
            " Write them as %23, %3F, %3B, %3D and %40, and / as %2F. Write & between options"
        )


def _options(split: SplitResult, module: Any) -> dict[str, str]:
    hint_for: Callable[[str, str], str] = getattr(module, "hint_for", lambda *_: "")
    options: dict[str, str] = {}
    for option, value in parse_qsl(split.query, keep_blank_values=True):
        if option not in module.OPTIONS:
            known = [name for name in module.OPTIONS if not hint_for(split.scheme, name)]
            # Without a value it may be the end of a password that has an &.
            shown = repr(option) if value and option.isidentifier() else "of this name"
            raise ConfigError(f"{split.scheme}:// has no option {shown}. Its options are {', '.join(known)}")
        if hint := hint_for(split.scheme, option):
            raise ConfigError(f"{split.scheme}:// does not take {option}: {hint}")
        if option in options:
            raise ConfigError(f"{split.scheme}:// has the option {option!r} twice")
        options[option] = value
    return options
