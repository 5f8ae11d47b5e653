"""A request as features are read from it, the same under ASGI and WSGI; what your own functions are given.

It is a mapping over what the server gave, too: ``request["client"]`` in ASGI, ``request["REMOTE_USER"]`` in WSGI.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from ..keys.features import INVALID

if TYPE_CHECKING:
    from .body import Body

__all__ = ["Headers", "Request"]

_MOST_FIELDS: Final = 1000
_ESCAPED = re.compile(r"\\(?:([0-3][0-7]{2})|(.))")
_AROUND: Final = "".join(chr(code) for code in range(256) if not "!" <= chr(code) <= "~")


class Request(Mapping[str, Any]):
    """One request. ``native`` is the ASGI scope or the WSGI environ."""

    endpoint: str | None = None
    """The template of its route; None where nobody knows the application's routes."""
    path_params: Mapping[str, object] = MappingProxyType({})
    """The values of the parameters in that template, by name."""
    parsed_body: Body | None = None
    """The body as its fields are read from it, once somebody has asked for one."""

    def __init__(self, native: MutableMapping[str, Any]) -> None:
        self.native = native

    @property
    @abstractmethod
    def method(self) -> str:
        """In upper case."""

    @property
    @abstractmethod
    def path(self) -> str:
        """Decoded once, without the prefix under which the server mounted the application."""

    @property
    @abstractmethod
    def peer(self) -> str | None:
        """The address of the socket's other end; None where it has none, as on a Unix socket."""

    @property
    @abstractmethod
    def query_string(self) -> str:
        """Still encoded, without the question mark."""

    @abstractmethod
    def header_lines(self, name: str) -> list[str]:
        """All values of a header, ``name`` in lower case, in the order they came."""

    @abstractmethod
    def header_names(self) -> list[str]:
        """The names of all headers, in lower case, each once."""

    @abstractmethod
    def one_of(self, values: list[str]) -> str:
        """The one of several values with a name that the framework's users would see."""

    def body(self, limit: int) -> object:
        """The body's bytes; None when there is none, ``INVALID`` for one over ``limit`` and one cut short.

        Whatever of it is read here, the application has to receive all the same.
        """
        raise NotImplementedError(f"{type(self).__name__} reads no bodies")

    @property
    def headers(self) -> Headers:
        return Headers(self)

    @property
    def host(self) -> str:
        """The host asked for: lower case, no port, "" when there is none; of several the first, as frameworks do."""
        lines = self.header_lines("host")
        return _host(lines[0]) if lines else ""

    def header(self, name: str) -> Any:
        """A header as a feature: of several lines with different values some frameworks show one, others all."""
        lines = self.header_lines(name)
        return _only(lines) if lines else None

    def cookie(self, name: str) -> Any:
        """A cookie as a feature: ``INVALID`` where frameworks may show different values."""
        values = self._cookies.get(name)
        if values is None:
            return None
        return _only(values) if values[0].isascii() else INVALID

    @property
    def cookies(self) -> dict[str, str]:
        return {name: self.one_of(values) for name, values in self._cookies.items()}

    @cached_property
    def _cookies(self) -> dict[str, list[str]]:
        """All values by name. What frameworks take off around a name depends on how they decode it: all of that."""
        found: dict[str, list[str]] = {}
        for part in ";".join(self.header_lines("cookie")).split(";"):
            name, equals, value = part.partition("=")
            if equals:
                found.setdefault(name.strip(_AROUND), []).append(_unquoted(value.strip()))
        return found

    @cached_property
    def query(self) -> dict[str, str] | None:
        """The query's fields; None when there are more than anybody would read, or bytes that nobody escaped."""
        text = self.query_string
        if not text.isascii():  # UTF-8 to some frameworks, Latin-1 to others
            return None
        try:
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
        except ValueError:
            return None
        found: dict[str, list[str]] = {}
        for name, value in pairs:
            found.setdefault(name, []).append(value)
        return {name: self.one_of(values) for name, values in found.items()}

    def __getitem__(self, name: str) -> Any:
        return self.native[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.native)

    def __len__(self) -> int:
        return len(self.native)


class Headers(Mapping[str, str]):
    """The headers of a request by name, in any case; several lines of one name are joined with commas."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def __getitem__(self, name: str) -> str:
        lines = self._request.header_lines(name.lower())
        if not lines:
            raise KeyError(name)
        return ", ".join(lines)

    def __iter__(self) -> Iterator[str]:
        return iter(self._request.header_names())

    def __len__(self) -> int:
        return len(self._request.header_names())


def _only(values: list[str]) -> Any:
    """The one value that all of them are."""
    return values[0] if values.count(values[0]) == len(values) else INVALID


def _unquoted(value: str) -> str:
    r"""A cookie's value without its quotes and escapes.

    >>> _unquoted("abc"), _unquoted(r'"\141b\c"')
    ('abc', 'abc')
    """
    if len(value) < 2 or value[0] != '"' or value[-1] != '"':
        return value
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)) if found[1] else found[2], value[1:-1])


def _host(text: str) -> str:
    host = text.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]" if "]" in host else ""
    return host.partition(":")[0].rstrip(".")
