"""The text fields of multipart/form-data, as browsers and clients write it; None for anything out of the ordinary.

Parsers differ in what they make of bare line feeds, folded headers, stray boundaries and encodings. What two of them
could see in two ways is not read here, so that nobody shows one field to a limit and another one to the application.
"""

from __future__ import annotations

import re
from typing import Final

from .charset import is_utf8

__all__ = ["fields_of"]

_PARAMETER: Final = r"[ \t]*;[ \t]*{}"
_BOUNDARY: Final = _PARAMETER.format(r"""boundary=(?:([\w'+.-]{1,70})|"([\w'()+,./:=?-]{1,70})")""")
_CHARSET: Final = _PARAMETER.format('charset="?utf-?8"?')
_CONTENT_TYPE = re.compile(rf"multipart/form-data(?:{_CHARSET})?{_BOUNDARY}(?:{_CHARSET})?", re.ASCII | re.IGNORECASE)
_HEADER = re.compile(r"([\w-]+):([^\x00-\x08\x0a-\x1f\x7f]*)", re.ASCII)
_FILENAME: Final = _PARAMETER.format(r"""filename(?:="[^"\\]*"|\*=[^;"\s]*)""")
_DISPOSITION = re.compile(rf'form-data[ \t]*;[ \t]*name="([^"\\]*)"((?:{_FILENAME})*)', re.IGNORECASE)
_AS_IT_IS: Final = ("7bit", "8bit", "binary")


def fields_of(content: bytes, content_type: str, most: int) -> list[tuple[str, str | None]] | None:
    """(name, text) of every part in its order; the text of a file is None."""
    found = _CONTENT_TYPE.fullmatch(content_type.strip())
    if found is None:
        return None
    delimiter = b"--" + (found[1] or found[2]).encode("ascii")
    first, *parts = content.split(delimiter, most + 2)
    if first not in (b"", b"\r\n") or not parts or len(parts) > most + 1 or parts.pop() not in (b"--", b"--\r\n"):
        return None
    fields = []
    for part in parts:
        field = _field(part)
        if field is None:
            return None
        fields.append(field)
    return fields


def _field(part: bytes) -> tuple[str, str | None] | None:
    head, blank, value = part.partition(b"\r\n\r\n")
    if not head.startswith(b"\r\n") or not blank or not value.endswith(b"\r\n"):
        return None
    try:
        headers = _headers(head[2:].decode())
        disposition = None if headers is None else _DISPOSITION.fullmatch(headers.get("content-disposition", ""))
        if headers is None or disposition is None or not _is_plain(headers):
            return None
        if disposition[1] != disposition[1].strip():  # Django takes the spaces off
            return None
        return disposition[1], None if disposition[2] else value[:-2].decode()
    except UnicodeDecodeError:
        return None


def _headers(head: str) -> dict[str, str] | None:
    """The headers of a part by name, in lower case; None when one is malformed or doubled."""
    found: dict[str, str] = {}
    for line in head.split("\r\n"):
        header = _HEADER.fullmatch(line)
        if header is None or header[1].lower() in found:
            return None
        found[header[1].lower()] = header[2].strip()
    return found


def _is_plain(headers: dict[str, str]) -> bool:
    """Whether the text stands there as it is, in UTF-8."""
    encoding = headers.get("content-transfer-encoding", "binary").lower()
    return encoding in _AS_IT_IS and is_utf8(headers.get("content-type", ""))
