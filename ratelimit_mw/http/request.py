"""A request as features read it, the same under ASGI and WSGI. Your own functions receive it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

from ..keys.features import INVALID
from ..keys.forms import normalize_host
from ..rules.marks import Destination

MAX_FIELDS: Final = 1000
"""The maximum number of fields that are read from one query or body."""

_Value = TypeVar("_Value")
_ENCODED_SLASH = re.compile(b"%2[fF]")
_CHARACTER = re.compile("%2[5F]|.", re.DOTALL)
_UTF8: Final = "(?:utf-?8|us-ascii)"
_NOT_PRINTABLE: Final = "".join(chr(code) for code in range(256) if not "!" <= chr(code) <= "~")
_PLAIN = re.compile(r"[!#-+\--:<-\[\]-~]*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*+)"')
_ESCAPE = re.compile(r"\\(?:([0-3][0-7]{2})|(.))")
_INSIDE = re.compile(r"[\s,]([^\s,=\"]+)\s*+(?:=|\Z)")
_UTF8_CHARSET = re.compile(rf'[;\s]charset[ \t]*=[ \t]*(?:{_UTF8}|"{_UTF8}")[ \t]*(?:;|\Z)', re.ASCII)


class Headers(Mapping[str, str]):
    """The headers of a request by name, in any case."""

    def __init__(self, lines: Mapping[str, list[str]]) -> None:
        self._lines = lines

    def __getitem__(self, name: str) -> str:
        return ", ".join(self._lines[name.lower()])

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)


class Request(ABC):
    """One request."""

    native: MutableMapping[str, Any]
    """The ASGI scope, or the WSGI environ."""
    to: Destination
    """The route that the request goes to."""
    path_params: Mapping[str, object] = MappingProxyType({})
    """The values of the route's parameters, by name."""
    parsed_body: Any = None
    """The ``Body``, once a feature has read a field of it."""
    identified: Any = None
    """The features that your function of several features has returned, or its awaitable."""
    original: Request | None = None
    """The same request as it was decided first, which keeps ``identified``."""
    framework_request: Any = None
    """The framework's own request; None where there is none."""

    @property
    def for_functions(self) -> Any:
        """The request that your functions receive: the framework's own, else this one."""
        return self.framework_request or self

    @property
    def has_body(self) -> bool:
        """Whether ``body`` can be read now."""
        return True

    @property
    @abstractmethod
    def method(self) -> str:
        """The method in upper case."""

    @property
    @abstractmethod
    def path(self) -> str:
        """Decoded once, without the prefix under which the server mounted the application."""

    @property
    @abstractmethod
    def peer(self) -> str | None:
        """The IP address of the socket's other end; None where it has none, as on a Unix socket."""

    @property
    @abstractmethod
    def query_string(self) -> str:
        """Still encoded, without the question mark."""

    @abstractmethod
    def header_lines(self, name: str) -> list[str]:
        """Return all values of a header in the order they arrived. ``name`` is in lower case."""

    @abstractmethod
    def header_pairs(self) -> list[tuple[str, str]]:
        """Return the names, in lower case, and the values of all headers in the order they arrived."""

    def wait_for(self, value: Any) -> Any:
        """Return the value of a function for a caller that cannot await it. Most frameworks have no such caller."""
        return value

    def body(self, limit: int) -> object:
        """Return the bytes of the body; None without one, ``INVALID`` for one over ``limit`` bytes or cut short.

        The application still receives every byte that is read here.
        """
        raise NotImplementedError(f"{type(self).__name__} reads no bodies")

    @cached_property
    def headers(self) -> Headers:
        """The headers by name, in any case. Several lines of one name are joined with commas."""
        return Headers(group_values(self.header_pairs()))

    @property
    @abstractmethod
    def sent_path(self) -> str:
        """The path for rules: still encoded where only this shows an encoded slash or invalid UTF-8."""

    @property
    def counted_path(self) -> str:
        """The path for keys, which is one for all formats of a resource."""
        return self.sent_path

    @property
    def host(self) -> Any:
        """The normalized host; ``INVALID`` without ``Host``, for lines that differ, and for text that is no host."""
        return only_value(list(map(normalize_host, self.header_lines("host")))) or INVALID

    @property
    def accept(self) -> str:
        """The media types that the client accepts."""
        return ", ".join(self.header_lines("accept"))

    def header(self, name: str) -> Any:
        """Return a header as a feature. Several lines are ``INVALID``: frameworks show one of them, or all.

        So is the length of a chunked body: a client chooses it, and servers ignore it.
        """
        lines = self.header_lines(name)
        if len(lines) > 1 or (name == "content-length" and any(lines) and self.header_lines("transfer-encoding")):
            return INVALID
        return only_value(lines)

    def cookie(self, name: str) -> Any:
        """Return a cookie as a feature; ``INVALID`` where frameworks may show different values."""
        return INVALID if self._cookies is None else only_value(self._cookies.get(name, []))

    @cached_property
    def _cookies(self) -> dict[str, list[Any]] | None:
        return _parse_cookies(";".join(self.header_lines("cookie")))

    def query_field(self, name: str) -> Any:
        """Return a field of the query as a feature; ``INVALID`` where frameworks may show different values."""
        fields, others = self.query_values, self._split_query
        if fields is None or others is None or fields.get(name) != others.get(name):
            return INVALID
        return only_value(fields.get(name, []))

    @cached_property
    def query_values(self) -> dict[str, list[str]] | None:
        """All values by name; None for more than ``MAX_FIELDS``, and for bytes that are not escaped."""
        # Some frameworks decode such bytes as UTF-8, others as Latin-1.
        return parse_pairs(self.query_string) if self.query_string.isascii() else None

    @cached_property
    def _split_query(self) -> dict[str, list[str]] | None:
        """As old parsers read the query, which split at ``;``, too."""
        return parse_pairs(self.query_string.replace(";", "&")) if ";" in self.query_string else self.query_values


def still_encoded(raw: bytes, whole: str, path: str) -> str:
    r"""Return a path with the slashes encoded that the client encoded, and with every byte of invalid UTF-8.

    Args:
        raw: The path as the client has sent it.
        whole: The same path decoded, with the prefix under which the server mounted the application.
        path: The path without this prefix.

    >>> still_encoded(b"/api/a%2Fb%25", "/api/a/b%", "/a/b%"), still_encoded(b"/%FF", "/\ufffd", "/\ufffd")
    ('/a%2Fb%25', '/\udcff')
    """
    if not (_ENCODED_SLASH.search(raw) or "\ufffd" in path) or not whole.endswith(path):
        return path
    if unquote_to_bytes(raw).decode(errors="replace") != whole:  # other middleware has changed the path
        return path
    segments = [unquote_to_bytes(segment).decode(errors="surrogateescape") for segment in raw.split(b"/")]
    text = "/".join(segment.replace("%", "%25").replace("/", "%2F") for segment in segments)
    return "".join(_CHARACTER.findall(text)[len(whole) - len(path) :])


def is_utf8(content_type: str) -> bool:
    """Return whether a content type names UTF-8, its subset ASCII, or no charset.

    Other ways to write a charset (``charset*=``) count as other charsets.

    >>> is_utf8("application/json"), is_utf8('text/plain; charset="UTF-8"'), is_utf8("text/plain; charset=utf-7")
    (True, True, False)
    """
    text = content_type.lower()
    return len(_UTF8_CHARSET.findall(text)) == text.count("charset")


def parse_pairs(text: str) -> dict[str, list[str]] | None:
    """Return all values of each field of a query or a form; None for too many fields."""
    try:
        return group_values(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        return None


def group_values(pairs: Iterable[tuple[str, _Value]]) -> dict[str, list[_Value]]:
    """Return all values of each name."""
    values: dict[str, list[_Value]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return values


def only_value(values: list[Any]) -> Any:
    """Return the value when all values are equal, None when there are none, else ``INVALID``.

    A value with bytes that are not UTF-8 is ``INVALID``, too: frameworks replace them, or leave them escaped.
    """
    if not values:
        return None
    value = values[0]
    return INVALID if values.count(value) < len(values) or "\ufffd" in str(value) else value


def _parse_cookies(text: str) -> dict[str, list[Any]] | None:
    r"""Return all values of each cookie; None where a quoted value may hold other cookies.

    Parsers split at ``;``. Some split at spaces or commas as well, some not within quotes, and some leave out what is
    malformed. A cookie that they may read in different ways is ``INVALID``.

    >>> _parse_cookies(r'sid="\141bc"; x=1 y=2; sid=abc')["sid"], _parse_cookies('x="; sid=abc; y="')
    (['abc', 'abc'], None)
    """
    cookies: dict[str, list[Any]] = {}
    for part in text.split(";"):
        sent_name, _, value = part.partition("=")
        value = value.strip(" \t")
        if value.startswith('"') and not _QUOTED.fullmatch(value):
            return None
        # Names lose every character that some parser strips.
        name = sent_name.strip(_NOT_PRINTABLE)
        if name:
            cookies.setdefault(name, []).append(_cookie_text(value) if name == sent_name.strip(" \t") else INVALID)
        for name in _INSIDE.findall(part.strip(_NOT_PRINTABLE)):
            cookies.setdefault(name, []).append(INVALID)
    return cookies


def _cookie_text(value: str) -> Any:
    if not value.startswith('"'):
        return value if _PLAIN.fullmatch(value) else INVALID
    text = _ESCAPE.sub(lambda match: chr(int(match[1], 8)) if match[1] else match[2], value[1:-1])
    return text if text.isascii() else INVALID
