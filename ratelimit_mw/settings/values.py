"""Single values of the settings, from what is written to what is meant. ``ConfigError`` says what was expected."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from ..errors import ConfigError, placed
from ..keys.features import checked_name
from ..keys.secret import NO_SECRET, PERSONAL, Secret
from ..quota import parse_duration
from .files import secret_file

__all__ = [
    "budget",
    "checked_proxy",
    "database_file",
    "duration",
    "email_field",
    "header_name",
    "secret_of",
    "size",
]

_SIZE: Final = re.compile(r"(\d{1,9}) ?([A-Za-z]{0,3})", re.ASCII)
_SIZES: Final = {"": 1, "b": 1, "kb": 1000, "kib": 1024, "mb": 1000**2, "mib": 1024**2}
_MOST_BODY: Final = 16 * 1024**2


def checked_proxy(text: str) -> str:
    """An address, a network or "unix"."""
    if text != "unix":
        try:
            ip_network(text)
        except ValueError as error:
            raise ConfigError(f'expected an address, a network such as "10.0.0.0/8", or "unix": {error}') from None
    return text


def duration(name: str, value: str | int | float) -> int:
    """In whole microseconds."""
    with placed(name):
        return parse_duration(value)


def budget(name: str, value: str | int | float) -> int:
    """A duration that something may take."""
    found = duration(name, value)
    if not found:
        raise ConfigError(f"expected more than 0, for everything takes a moment; got {value!r}", name)
    return found


def size(name: str, value: str | int) -> int:
    """A number of bytes, from a number or from text such as "64KiB" and "1 MB"."""
    found = _SIZE.fullmatch(str(value))
    unit = _SIZES.get(found[2].lower(), 0) if found else 0
    amount = int(found[1]) * unit if found else 0
    if not 1 <= amount <= _MOST_BODY:
        raise ConfigError(f'expected a size such as "64KiB", from 1 byte to 16MiB; got {value!r}', name)
    return amount


def email_field(name: str) -> str:
    """A field as ``form:`` and ``json:`` take it; "": none."""
    if name:
        with placed("email_field"):
            checked_name(f"json:{name}")
    return name


def header_name(place: str, name: str) -> str:
    """In lower case; "": none."""
    if name:
        with placed(place):
            checked_name(f"header:{name}")
    return name.lower()


def database_file(name: str, folder: Path) -> str:
    """Where the file is: beside the settings file, unless it says otherwise."""
    path = folder / name
    if name and not path.is_file():
        raise ConfigError(f"{path}: there is no such file", "region_database")
    return str(path) if name else ""


def secret_of(text: str | None, file: str | None, keyed: Iterable[str] | None, folder: Path) -> Secret:
    """What keys personal features; no message here may show it."""
    if text is None and file is None:
        if keyed is not None:
            raise ConfigError("nothing is keyed without a secret; set secret or secret_file", "keyed")
        return NO_SECRET
    if text is not None and file is not None:
        raise ConfigError("there is a secret already; give one of the two", "secret_file")
    names = []
    for i, name in enumerate(PERSONAL if keyed is None else keyed):
        with placed(f"keyed[{i}]"):
            names.append(checked_name(name))
    with placed("secret" if file is None else "secret_file"):
        return Secret.of(text or "" if file is None else secret_file(folder / file), names)
