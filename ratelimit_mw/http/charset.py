"""Whether a content type names the charset that texts are read in here, so that nobody shows others another text."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["is_utf8"]

_NAME: Final = "(?:utf-?8|us-ascii)"
_NAMED = re.compile(rf'[;\s]charset[ \t]*=[ \t]*(?:{_NAME}|"{_NAME}")[ \t]*(?:;|\Z)', re.ASCII)


def is_utf8(content_type: str) -> bool:
    """Whether it names UTF-8, its part ASCII, or nothing; other ways to write one (``charset*=``) are other charsets.

    >>> is_utf8("application/json"), is_utf8('text/plain; charset="UTF-8"'), is_utf8("text/plain; charset=utf-7")
    (True, True, False)
    """
    text = content_type.lower()
    return "charset" not in text or len(_NAMED.findall(text)) == text.count("charset")
