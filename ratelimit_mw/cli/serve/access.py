"""The clients that may use a part of the API: all, trusted programs, or admins."""

import hmac
from base64 import b64decode
from typing import Final, Literal

from ...asgi.request import ASGIRequest
from ...http.client_ip import ClientIP
from ...http.local import is_local

Access = Literal["any", "trusted", "admin"]

_HEADER: Final = "X-RateLimit-Admin"
"""Without a token, an admin sends this header. An application that fetches URLs of its users does not send it."""
_FIX: Final = "Start the service with --admin-token-file FILE"


class ProblemError(Exception):
    """Ends a request with this status, a message, and the headers of the response."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def check_admin(request: ASGIRequest, token: str | None, has_gateway: bool) -> None:
    """Raise ``ProblemError`` unless an admin sends the request.

    Args:
        request: A request to the admin API.
        token: The token of the admin API; None for none.
        has_gateway: Whether a gateway uses the service. Clients may reach the API through it.
    """
    if token is not None:
        if not _has_token(request, token, "bearer"):
            raise ProblemError(401, "the admin API needs the header Authorization: Bearer TOKEN")
        return
    _check_machine(request, has_gateway, "the admin API")
    if not request.header_lines(_HEADER.lower()):
        raise ProblemError(403, f"without a token, the admin API needs the header {_HEADER}: yes")


def check_reader(request: ASGIRequest, token: str | None, has_gateway: bool) -> None:
    """Raise ``ProblemError`` unless the request to the dashboard comes from this machine, or has the token.

    A browser asks its user for a password, and sends it in no other header.
    """
    if token is None:
        _check_machine(request, has_gateway, "the dashboard")
    elif not _has_token(request, token, "bearer", "basic"):
        challenge = 'Basic realm="ratelimit-mw", charset="UTF-8"'
        raise ProblemError(401, "the dashboard needs the admin token as the password", www_authenticate=challenge)


def _check_machine(request: ASGIRequest, has_gateway: bool, part: str) -> None:
    if has_gateway:
        raise ProblemError(403, f"with --gateway, {part} needs a token. {_FIX}")
    if not is_local(request):
        raise ProblemError(403, f"from another machine or through a proxy, {part} needs a token. {_FIX}")


def check_trusted(request: ASGIRequest, client_ip: ClientIP) -> None:
    """Raise ``ProblemError`` unless a program of this machine, or one of ``trusted_proxies``, sends the request."""
    if not (is_local(request) or client_ip.trusts(request.peer)):
        message = f"{request.peer} is neither this machine nor one of trusted_proxies. Add it to trusted_proxies"
        raise ProblemError(403, message)


def _has_token(request: ASGIRequest, token: str, *schemes: str) -> bool:
    """Return whether the request has the token: as it is, or as the password of any user."""
    scheme, _, given = "".join(request.header_lines("authorization")).partition(" ")
    sent = _password(given) if scheme.lower() == "basic" else given.encode("latin-1")
    return scheme.lower() in schemes and hmac.compare_digest(sent, token.encode())


def _password(credentials: str) -> bytes:
    try:
        return b64decode(credentials).partition(b":")[2]
    except ValueError:
        return b""
