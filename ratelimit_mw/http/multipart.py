"""The text fields of multipart/form-data as browsers and HTTP clients write it.

Parsers disagree about bare line feeds, folded headers, stray boundaries and encodings. Such a body is rejected here,
so that a client cannot show one field to a limit and another one to the application.
"""

import re
from typing import Final

from .request import is_utf8

_PARAMETER: Final = r"[ \t]*;[ \t]*{}"
_BOUNDARY: Final = _PARAMETER.format(r"""boundary=(?:([\w'+.-]{1,200})|"([\w'()+,./:=?-]{1,200})")""")
_CHARSET: Final = _PARAMETER.format('charset="?utf-?8"?')
_CONTENT_TYPE = re.compile(rf"multipart/form-data(?:{_CHARSET})?{_BOUNDARY}(?:{_CHARSET})?", re.ASCII | re.IGNORECASE)
_HEADER = re.compile(r"([\w-]+):([^\x00-\x08\x0a-\x1f\x7f]*)", re.ASCII)
_FILENAME: Final = _PARAMETER.format(r"""filename(?:="[^"\\]*"|\*=[^;"\s]*)""")
_DISPOSITION = re.compile(rf'form-data[ \t]*;[ \t]*name="([^"\\]*)"((?:{_FILENAME})*)', re.IGNORECASE)
_PLAIN_ENCODINGS: Final = ("7bit", "8bit", "binary")


def parse_fields(content: bytes, content_type: str, max_fields: int) -> list[tuple[str, str | None]] | None:
    """Return (name, text) of every part in order, with None as the text of a file; None for an unusual body."""
    parsed_type = _CONTENT_TYPE.fullmatch(content_type.strip())
    if parsed_type is None:
        return None
    delimiter = b"--" + (parsed_type[1] or parsed_type[2]).encode("ascii")
    first, *parts = content.split(delimiter, max_fields + 2)
    if first not in (b"", b"\r\n") or not parts or len(parts) > max_fields + 1:
        return None
    if parts.pop() not in (b"--", b"--\r\n"):
        return None
    fields = [field for part in parts if (field := _field(part)) is not None]
    return fields if len(fields) == len(parts) else None


def _field(part: bytes) -> tuple[str, str | None] | None:
    head, blank, value = part.partition(b"\r\n\r\n")
    if not head.startswith(b"\r\n") or not blank or not value.endswith(b"\r\n"):
        return None
    try:
        headers = _headers(head[2:].decode())
        disposition = None if headers is None else _DISPOSITION.fullmatch(headers.get("content-disposition", ""))
        if headers is None or disposition is None or not _is_plain(headers):
            return None
        if disposition[1] != disposition[1].strip():  # Django strips the spaces
            return None
        return disposition[1], None if disposition[2] else value[:-2].decode()
    except UnicodeDecodeError:
        return None


def _headers(head: str) -> dict[str, str] | None:
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
