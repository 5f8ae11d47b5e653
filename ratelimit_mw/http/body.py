"""Fields of a request's body. Knows nothing of protocols: the adapter reads the bytes ahead of the application.

``form:`` reads the fields that a framework's form has, by the content type. ``json:`` reads any JSON text, because not
all applications check its content type. ``field:`` reads both. A body that may hold the field but cannot be parsed
gives ``INVALID``, not a missing value: a malformed body must not bypass a limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Final

from ..errors import ConfigError
from ..keys.features import INVALID
from .request import MAX_FIELDS, Request, group_values, is_utf8, only_value, parse_pairs

_JSON = re.compile(r"application/(?:[a-z0-9!#$&^_.+-]+\+)?json", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
_FORM: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"
_PARAMETER: Final = r"[ \t]*;[ \t]*{}"
_BOUNDARY: Final = _PARAMETER.format(r"""boundary=(?:([\w'+.-]{1,200})|"([\w'()+,./:=?-]{1,200})")""")
_CHARSET: Final = _PARAMETER.format('charset="?utf-?8"?')
_CONTENT_TYPE = re.compile(rf"multipart/form-data(?:{_CHARSET})?{_BOUNDARY}(?:{_CHARSET})?", re.ASCII | re.IGNORECASE)
_HEADER = re.compile(r"([\w-]+):([^\x00-\x08\x0a-\x1f\x7f]*)", re.ASCII)
_FILENAME: Final = _PARAMETER.format(r"""filename(?:="[^"\\]*"|\*=[^;"\s]*)""")
_DISPOSITION = re.compile(rf'form-data[ \t]*;[ \t]*name="([^"\\]*)"((?:{_FILENAME})*)', re.IGNORECASE)
_PLAIN_ENCODINGS: Final = ("7bit", "8bit", "binary")


class Body:
    """One body.

    >>> Body(b'{"user": {"name": "ann"}}', "application/json").json("user.name")
    'ann'
    """

    def __init__(self, content: object, content_type: str) -> None:
        self._content = INVALID if content and not is_utf8(content_type) else content or None
        self._content_type = content_type
        self._kind = content_type.partition(";")[0].strip().lower()

    @classmethod
    def from_form(cls, fields: Iterable[tuple[str, str]], files: Iterable[str] = ()) -> Body:
        """Return the body of a form that the framework has parsed already. ``files`` are the names of its files."""
        body = cls(b"parsed", _FORM)
        body._fields = group_values([*fields, *((name, None) for name in files)])
        return body

    @classmethod
    def from_data(cls, data: object) -> Body:
        """Return the body of data that the framework has parsed already, from JSON or another type."""
        body = cls(b"parsed", "application/json")
        body._document = data
        return body

    def form(self, name: str) -> Any:
        """Return a field of a form as text, None without one. Frameworks make no form of JSON."""
        if not isinstance(self._content, bytes):
            return self._content
        if self._is_json:
            return INVALID if self._document is INVALID else None
        fields = self._fields
        if fields is None or self._is_ambiguous(name, fields):
            return INVALID
        values = fields.get(name, [])
        return INVALID if None in values else only_value(values)

    def json(self, path: str) -> Any:
        """Return a field of JSON as text, None without one. "a.b" is the field b of a.

        A list, a number or a text in the place of an object is ``INVALID``: it may still be read in the application.
        """
        if not isinstance(self._content, bytes):
            return self._content
        if not self._is_json and self._fields is None:
            return INVALID
        value = self._document
        if value is INVALID:
            return INVALID if self._is_json else None
        for name in path.split("."):
            if not isinstance(value, dict):
                return INVALID
            if (value := value.get(name)) is None:
                return None
        return _text(value)

    def field(self, name: str) -> Any:
        """Return a field of the form or of JSON as text, None without one."""
        value, in_form = self.json(name), self.form(name)
        # A text that is a form and JSON at once is ambiguous: the application may read either.
        return in_form if value is None else value if in_form is None else INVALID

    @property
    def _is_json(self) -> bool:
        return _JSON.fullmatch(self._kind) is not None

    @cached_property
    def _document(self) -> Any:
        try:
            return json.loads(self._content, object_pairs_hook=_object)  # type: ignore[arg-type]
        except (ValueError, RecursionError):
            return INVALID

    @cached_property
    def _fields(self) -> Mapping[str, list[Any]] | None:
        """The values of a form by name, with None for a file; None for a body that is not a form."""
        content: bytes = self._content  # type: ignore[assignment]
        if self._kind == _FORM:
            return _form_fields(content)
        parts = parse_multipart(content, self._content_type) if self._kind == _MULTIPART else None
        return None if parts is None else group_values(parts)

    def _is_ambiguous(self, name: str, fields: Mapping[str, Any]) -> bool:
        """Old parsers split at ``;`` as well as at ``&``, and some decode bytes that are not escaped as Latin-1."""
        content: bytes = self._content  # type: ignore[assignment]
        if self._kind != _FORM or (b";" not in content and content.isascii()):
            return False
        other = _form_fields(content.replace(b";", b"&"), "latin-1")
        return other is None or other.get(name) != fields.get(name)


def body_feature(name: str, limit: int) -> Callable[[Request], Any] | None:
    """Return the function that reads a feature from the body; None for a feature that is not in the body."""
    family, _, field = name.partition(":")
    read = {"form": Body.form, "json": Body.json, "field": Body.field}.get(family)
    if not read or not field:
        return None

    def feature(request: Request) -> Any:
        if request.parsed_body is None and not request.has_body:
            read_only = "the middleware reads bodies only for the rules that match a request"
            raise ConfigError(f"{read_only}. Pass each field by its name in the key, such as email=VALUE")
        return read(_parsed_body(request, limit), field)

    return feature


def _parsed_body(request: Request, limit: int) -> Body:
    body: Body | None = request.parsed_body
    if body is None:
        headers = request.headers
        content = request.body(limit)
        is_encoded = headers.get("content-encoding", "identity").strip().lower() != "identity"
        if content and (is_encoded or len(request.header_lines("content-type")) > 1):
            content = INVALID
        body = request.parsed_body = Body(content, headers.get("content-type", ""))
    return body


def _form_fields(content: bytes, charset: str = "utf-8") -> Mapping[str, list[Any]] | None:
    try:
        return parse_pairs(content.decode(charset))
    except UnicodeDecodeError:
        return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; a name that occurs twice with different values is INVALID."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        for name, values in group_values(pairs).items():
            fields[name] = values[0] if len(set(map(repr, values))) == 1 else INVALID
    return fields


def _text(value: Any) -> Any:
    """Return a JSON value as the text in keys: 7, 7.0 and "7" are equal. Lists and objects are ``INVALID``."""
    if isinstance(value, str):  # stores cannot encode half of a surrogate pair, which JSON may hold
        return INVALID if _SURROGATE.search(value) else value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int | float) else INVALID


def parse_multipart(content: bytes, content_type: str) -> list[tuple[str, str | None]] | None:
    """Return (name, text) of every part in order, with None as the text of a file; None for an unusual body.

    Browsers and HTTP clients write usual ones. Parsers disagree about bare line feeds, folded headers, stray
    boundaries and encodings, so a client could show one field to a limit and another one to the application.
    """
    parsed_type = _CONTENT_TYPE.fullmatch(content_type.strip())
    if parsed_type is None:
        return None
    delimiter = b"--" + (parsed_type[1] or parsed_type[2]).encode("ascii")
    first, *parts = content.split(delimiter, MAX_FIELDS + 2)
    if first not in (b"", b"\r\n") or not parts or len(parts) > MAX_FIELDS + 1:
        return None
    if parts.pop() not in (b"--", b"--\r\n"):
        return None
    fields = [field for part in parts if (field := _part(part)) is not None]
    return fields if len(fields) == len(parts) else None


def _part(part: bytes) -> tuple[str, str | None] | None:
    head, _, value = part.partition(b"\r\n\r\n")
    if not head.startswith(b"\r\n") or not value.endswith(b"\r\n"):
        return None
    try:
        headers = _part_headers(head[2:].decode())
        disposition = None if headers is None else _DISPOSITION.fullmatch(headers.get("content-disposition", ""))
        if headers is None or disposition is None or not _is_plain(headers):
            return None
        if disposition[1] != disposition[1].strip():  # Django strips the spaces
            return None
        return disposition[1], None if disposition[2] else value[:-2].decode()
    except UnicodeDecodeError:
        return None


def _part_headers(head: str) -> dict[str, str] | None:
    """Return the headers of a part by name in lower case; None when one is malformed or repeated."""
    headers: dict[str, str] = {}
    for line in head.split("\r\n"):
        header = _HEADER.fullmatch(line)
        if header is None or header[1].lower() in headers:
            return None
        headers[header[1].lower()] = header[2].strip()
    return headers


def _is_plain(headers: dict[str, str]) -> bool:
    """Return whether the text is neither encoded nor in another charset than UTF-8."""
    encoding = headers.get("content-transfer-encoding", "binary").lower()
    return encoding in _PLAIN_ENCODINGS and is_utf8(headers.get("content-type", ""))
