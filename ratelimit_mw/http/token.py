"""The token of pages without another check. It is printed at the start: a local client may be a proxy for others."""

import hmac
from base64 import b64decode
from functools import cache
from secrets import token_urlsafe
from typing import Final

from .request import Request

CHALLENGE: Final = 'Basic realm="ratelimit-mw", charset="UTF-8"'
"""The value of ``WWW-Authenticate``. A browser then asks its user for the password, and sends it in no other header."""


@cache
def start_token() -> str:
    """Return the token of this process. It ends with the process, and processes that it forks have the same."""
    return token_urlsafe(24)


def has_token(request: Request, token: str, *schemes: str) -> bool:
    """Return whether the request has the token: as it is ("bearer"), or as the password of any user ("basic")."""
    scheme, _, given = "".join(request.header_lines("authorization")).partition(" ")
    sent = _password(given) if scheme.lower() == "basic" else given.encode("latin-1")
    return scheme.lower() in schemes and hmac.compare_digest(sent, token.encode())


def _password(credentials: str) -> bytes:
    try:
        return b64decode(credentials).partition(b":")[2]
    except ValueError:
        return b""
