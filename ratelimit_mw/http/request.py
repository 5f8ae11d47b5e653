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

if TYPE_CHECKING:
    from .body import Body

__all__ = ["Headers", "Request"]

_MOST_FIELDS: Final = 1000
_QUOTED = re.compile(r'"(.*)"', re.DOTALL)


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
        """The body's bytes; None when there is none, ``UNREADABLE`` for one over ``limit`` and one cut short.

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

    @cached_property
    def cookies(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for part in "; ".join(self.header_lines("cookie")).split(";"):
            name, equals, value = part.strip(" \t").partition("=")
            if equals:
                found[name.rstrip()] = _QUOTED.sub(r"\1", value.strip())
        return found

    @cached_property
    def query(self) -> dict[str, str] | None:
        """The query's fields; None when there are more than anybody would read."""
        try:
            pairs = parse_qsl(self.query_string, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
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


def _host(text: str) -> str:
    host = text.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]" if "]" in host else ""
    return host.partition(":")[0].rstrip(".")
