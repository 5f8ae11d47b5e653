"""The cookies of a request. A cookie that parsers may read in different ways is INVALID.

Parsers split at ``;``. Some split at spaces or commas as well, some not within quotes, and some leave out what is
malformed.
"""

import re
from typing import Any, Final

from ..keys.features import INVALID

_NOT_PRINTABLE: Final = "".join(chr(code) for code in range(256) if not "!" <= chr(code) <= "~")
_PLAIN = re.compile(r"[!#-+\--:<-\[\]-~]*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*+)"')
_ESCAPE = re.compile(r"\\(?:([0-3][0-7]{2})|(.))")
_INSIDE = re.compile(r"[\s,]([^\s,=\"]+)\s*+(?:=|\Z)")


def parse_cookies(text: str) -> dict[str, list[Any]] | None:
    r"""Return all values of each cookie; None where a quoted value may hold other cookies.

    >>> parse_cookies(r'sid="\141bc"; x=1 y=2; sid=abc')["sid"], parse_cookies('x="; sid=abc; y="')
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
            cookies.setdefault(name, []).append(_text(value) if name == sent_name.strip(" \t") else INVALID)
        for name in _INSIDE.findall(part.strip(_NOT_PRINTABLE)):
            cookies.setdefault(name, []).append(INVALID)
    return cookies


def _text(value: str) -> Any:
    if not value.startswith('"'):
        return value if _PLAIN.fullmatch(value) else INVALID
    text = _ESCAPE.sub(lambda match: chr(int(match[1], 8)) if match[1] else match[2], value[1:-1])
    return text if text.isascii() else INVALID
