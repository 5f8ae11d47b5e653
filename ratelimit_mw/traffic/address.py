"""Parse and check the URL of a traffic log, without opening a file or importing a library."""

from __future__ import annotations

import os
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from ..errors import ConfigError, suggestion
from ..stores import check_store_url
from .retention import DEFAULT, Retention

_EXAMPLE: Final = "sqlite:///traffic.db, or sqlite:////var/lib/app/traffic.db for an absolute path"
_REDIS: Final = ("redis", "rediss", "valkey", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster")
_ALIASES: Final = ("valkeys", "valkey+sentinel", "valkey+cluster", "redis+unix", "valkey+unix", "redis+socket")
FAMILIES: Final = {
    "memory": "memory",
    "sqlite": "sqlite",
    **dict.fromkeys((*_REDIS, "rediss+cluster", *_ALIASES), "redis"),
}
"""The kind of store of each scheme, and the module that opens it."""


class LogAddress(NamedTuple):
    """The parts of a URL. ``place`` is the absolute path of a file, or what the store of the scheme has parsed."""

    family: str
    place: object
    retention: Retention


def parse_log_url(url: str, retention: str | None = None) -> LogAddress:
    """Return the parts of a URL. ``retention`` is that of an argument.

    Raises:
        ConfigError: The URL has no store of traffic logs, or its retention is invalid.
    """
    scheme, separator, _ = str(url).partition("://")
    if not separator:  # the text may have a login
        raise ConfigError('expected the URL of a traffic log, for example "sqlite:///traffic.db"')
    if scheme not in FAMILIES:
        raise ConfigError(f"a traffic log cannot use the scheme {scheme!r}{suggestion(scheme, FAMILIES)}")
    rest, found = without_retention(url)
    if found is not None and retention is not None:
        raise ConfigError("retention is set both in the URL and as an argument. Set it once")
    chosen = found if retention is None else retention
    kept = Retention(DEFAULT if chosen is None else chosen)
    if scheme == "sqlite":
        return LogAddress("sqlite", _path_of(rest), kept)
    return LogAddress(FAMILIES[scheme], check_store_url(rest)[1], kept)


def checked_log_url(url: str) -> str:
    """Return the URL; ``ConfigError`` unless it is that of a traffic log."""
    parse_log_url(url)
    return url


def without_retention(url: str) -> tuple[str, str | None]:
    """Return a URL without its option ``retention``, and that option."""
    base, _, query = url.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    found = [value for name, value in options if name == "retention"]
    if not found:
        return url, None
    if len(found) > 1:
        raise ConfigError("the URL of a traffic log has the option 'retention' twice")
    rest = "&".join(f"{quote(name)}={quote(value)}" for name, value in options if name != "retention")
    return f"{base}?{rest}" if rest else base, found[0]


def _path_of(url: str) -> str:
    expected = f"sqlite:// needs the path of a file: {_EXAMPLE}"
    try:
        split = urlsplit(url)
    except ValueError:  # an invalid host between brackets, where there must be none
        raise ConfigError(expected) from None
    if split.query:
        raise ConfigError("unknown option in the URL: sqlite:// takes only retention")
    path = unquote(split.path)[1:]
    if split.netloc or split.fragment or not path or path.endswith("/") or "\0" in path:
        raise ConfigError(expected)
    if path == ":memory:":
        raise ConfigError("SQLite in memory is not supported. For a log in memory, write memory://")
    return os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps ".."
