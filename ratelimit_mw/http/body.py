"""Fields of a request's body, from bytes that were read ahead of the application. Knows nothing of protocols.

What a body holds for ``form:`` is what a framework's form would hold, by the content type; ``json:`` is read from
whatever is JSON, as applications do not all ask for its content type. What may hold a field and cannot be read is
``INVALID``, not unknown: nobody escapes a limit by a malformed body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from ..keys.email import normalized_email
from ..keys.features import INVALID
from .charset import is_utf8
from .multipart import fields_of
from .request import Request

__all__ = ["Bodies", "Body"]

MOST_FIELDS: Final = 1000

_JSON = re.compile(r"application/(?:[a-z0-9!#$&^_.+-]+\+)?json", re.ASCII)
_FORM: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"

Read = Callable[[Request], Any]


class Body:
    """One body. ``content``: its bytes, None when there is none, ``INVALID``.

    ``one_of``: which of several values with a name counts.

    >>> Body(b'{"user": {"name": "ann"}}', "application/json", one_of=max).json("user.name")
    'ann'
    """

    def __init__(self, content: object, content_type: str, one_of: Callable[[list[str]], str]) -> None:
        self._content = INVALID if content and not is_utf8(content_type) else content or None
        self._content_type = content_type
        self._kind = content_type.partition(";")[0].strip().lower()
        self._one_of = one_of

    @classmethod
    def of_form(cls, fields: Iterable[tuple[str, str]], one_of: Callable[[list[str]], str]) -> Body:
        """What a framework has parsed already, so that nobody can read it again."""
        return cls(urlencode(list(fields)).encode(), _FORM, one_of)

    def form(self, name: str) -> Any:
        """A field of a form as text, None without one. Of JSON no framework makes a form."""
        if not isinstance(self._content, bytes):
            return self._content
        if self._is_json:
            return INVALID if self._document is INVALID else None
        fields = self._fields
        if fields is None or self._is_read_in_two_ways(name, fields):
            return INVALID
        values = fields.get(name, [])
        if None in values:
            return INVALID
        return self._one_of(values) if values else None  # type: ignore[arg-type]

    def json(self, path: str) -> Any:
        """A field of JSON as text, "a.b" is b within a; None without one."""
        if not isinstance(self._content, bytes):
            return self._content
        if not self._is_json and self._fields is None:
            return INVALID
        value = self._document
        if value is INVALID:
            return INVALID if self._is_json else None
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return _text(value)

    def email(self, field: str) -> Any:
        """The one spelling of the address in a field of whichever the body is."""
        found = self.json(field)
        if not self._is_json:
            in_form = self.form(field)
            # One text that is form and JSON: nobody knows which of them the application reads.
            found = in_form if found is None else found if in_form is None else INVALID
        return normalized_email(found) if isinstance(found, str) else found

    @property
    def _is_json(self) -> bool:
        return _JSON.fullmatch(self._kind) is not None

    @cached_property
    def _document(self) -> Any:
        try:
            return json.loads(self._content)  # type: ignore[arg-type]
        except (ValueError, RecursionError):
            return INVALID

    @cached_property
    def _fields(self) -> dict[str, list[str | None]] | None:
        """A form's values by name, None for what is no text; None for what is no form."""
        content: bytes = self._content  # type: ignore[assignment]
        if self._kind == _FORM:
            return _grouped(_pairs(content))
        if self._kind == _MULTIPART:
            return _grouped(fields_of(content, self._content_type, MOST_FIELDS))
        return None

    def _is_read_in_two_ways(self, name: str, fields: Mapping[str, Any]) -> bool:
        """Old parsers take ``;`` for ``&``, and some take bytes that nobody escaped for Latin-1."""
        content: bytes = self._content  # type: ignore[assignment]
        if self._kind != _FORM or (b";" not in content and content.isascii()):
            return False
        other = _grouped(_pairs(content.replace(b";", b"&"), "latin-1"))
        return other is None or other.get(name) != fields.get(name)


class Bodies:
    """Gives features that stand in bodies, of which ``limit`` bytes are read."""

    def __init__(self, limit: int, email_field: str) -> None:
        self._limit = limit
        self._email_field = email_field

    def read(self, name: str) -> Read | None:
        """What gives the feature of that name; None for one that stands in no body."""
        family, _, field = name.partition(":")
        if name == "email" and self._email_field:
            return lambda request: self._of(request).email(self._email_field)
        if field and family == "form":
            return lambda request: self._of(request).form(field)
        if field and family == "json":
            return lambda request: self._of(request).json(field)
        return None

    def _of(self, request: Request) -> Body:
        body = request.parsed_body
        if body is None:
            headers = request.headers
            content = request.body(self._limit)
            if content and headers.get("content-encoding", "identity").strip().lower() != "identity":
                content = INVALID
            body = request.parsed_body = Body(content, headers.get("content-type", ""), request.one_of)
        return body


def _pairs(content: bytes, charset: str = "utf-8") -> list[tuple[str, str | None]] | None:
    try:
        pairs = parse_qsl(content.decode(charset), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        return None
    return list(pairs)


def _grouped(pairs: list[tuple[str, str | None]] | None) -> dict[str, list[str | None]] | None:
    if pairs is None:
        return None
    found: dict[str, list[str | None]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def _text(value: Any) -> Any:
    """A value of JSON as the text that stands in keys: 7, 7.0 and "7" are one. Lists and tables have none."""
    if value is None or isinstance(value, str):
        return INVALID if value and not _is_writable(value) else value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int | float) else INVALID


def _is_writable(text: str) -> bool:
    """Whether stores can write it: JSON may hold half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
