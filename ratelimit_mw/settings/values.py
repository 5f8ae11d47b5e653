"""Parse single settings. ``ConfigError`` shows the value and the expected form."""

import difflib
import inspect
import re
from collections.abc import Callable, Iterable
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError, error_path, parse_each
from ..keys.features import checked_name
from ..keys.parts import checked_part, part_of
from ..keys.secret import NO_SECRET, PERSONAL, Secret
from ..rules.declaration import check_type, checked_call
from ..stores import Store, check_store_url
from .files import secret_file

_SIZE: Final = re.compile(r"(\d{1,9}) ?([A-Za-z]{0,3})", re.ASCII)
_SIZES: Final = {"": 1, "b": 1, "kb": 1000, "kib": 1024, "mb": 1000**2, "mib": 1024**2}
_IMPORT: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
_MOST_BODY: Final = 16 * 1024**2
_HEADER: Final = re.compile(r"[a-z0-9-]+", re.ASCII)
_HEADERS_OF_PROXIES: Final = ("x-forwarded-for", "forwarded")


def checked_store(store: Any) -> str | Store:
    """A store, or a URL that names one, which may hold a password."""
    if not isinstance(store, Store):
        check_type(store, str, is_secret=True)
        check_store_url(store)
    return store  # type: ignore[no-any-return]


def checked_proxy(text: str) -> str:
    """An IP address, a network or "unix"."""
    try:
        text == "unix" or ip_network(text)
    except ValueError as error:
        expected = 'expected an IP address, a network such as "10.0.0.0/8", or "unix"'
        raise ConfigError(f"{expected}: {error}") from None
    return text


def forwarded_header(name: str) -> str:
    """The name of a header in lower case. A misspelt name of a header with a list of proxies is an error."""
    header = name.strip().lower()
    nearest = difflib.get_close_matches(header, _HEADERS_OF_PROXIES, 1, 0.8)
    if not _HEADER.fullmatch(header) or (nearest and nearest[0] != header):
        hint = f". Did you mean {nearest[0]!r}?" if nearest else ""
        raise ConfigError(f"expected the name of a header, such as 'x-forwarded-for'; got {name!r}{hint}")
    return header


def parse_size(value: str | int) -> int:
    """A number of bytes, from a number or from text such as "64KiB" and "1 MB"."""
    match = _SIZE.fullmatch(str(value))
    size = int(match[1]) * _SIZES.get(match[2].lower(), 0) if match else 0
    if not 1 <= size <= _MOST_BODY:
        raise ConfigError(f'expected a size such as "64KiB", from 1 byte to 16MiB; got {value!r}')
    return size


def field_name(family: str, name: str) -> str:
    """A name as features of the family ``json`` or ``header`` have it, or "" for none."""
    feature = checked_name(f"{family}:{name}") if name else ""
    return feature.partition(":")[2]


def database_file(folder: Path, name: str) -> str:
    """The path of a file, relative to the folder of the settings file, or "" for none."""
    path = folder / name
    try:
        is_found = path.is_file()
    except (OSError, ValueError):  # no file system has such a name
        is_found = False
    if name and not is_found:
        raise ConfigError(f"file not found: {str(path)!r}")
    return str(path) if name else ""


def secret_of(text: str | None, file: str | None, keyed: Iterable[str] | None, folder: Path) -> Secret:
    """The secret from its text or its file. No message shows the secret."""
    if text is None and file is None:
        if keyed is not None:
            raise ConfigError("keyed needs a secret. Set secret or secret_file", "keyed")
        return NO_SECRET
    if text is not None and file is not None:
        raise ConfigError("set either secret or secret_file, not both", "secret_file")
    with error_path("keyed"):
        names = parse_each(checked_name, PERSONAL if keyed is None else keyed)
    with error_path("secret" if file is None else "secret_file"):
        return Secret.from_text(text or "" if file is None else secret_file(folder / file), names)


def checked_observers(observers: Any) -> tuple[str | Callable[[Any], object], ...]:
    """Functions of an event, or the texts "module:function" that name them."""
    if not isinstance(observers, list | tuple):
        raise ConfigError(f'expected a list such as ["app.events:count"]; got {observers!r}')
    return parse_each(_checked_observer_or_name, observers)


def _checked_observer_or_name(observer: Any) -> str | Callable[[Any], object]:
    if not isinstance(observer, str):
        return checked_observer(observer)
    if not _IMPORT.fullmatch(observer):
        raise ConfigError(f'expected "module:function", such as "app.events:count"; got {observer!r}')
    return observer


def checked_observer(observer: Any) -> Callable[[Any], object]:
    """Return a function of an event. It is called without ``await``."""
    if any(map(inspect.iscoroutinefunction, (observer, type(observer).__call__))):
        name = getattr(observer, "__name__", repr(observer))
        message = f"expected a function without async; got {name}. In the function, start a task or fill a queue"
        raise ConfigError(message)
    return checked_call(observer, "the event")


def key_name(part: str) -> str:
    """The name of a part of a key, as it is in keys."""
    return part_of(checked_part(part)).name
