"""The clients that may use a part of the API: all, trusted programs, or admins."""

import hmac
from typing import Final, Literal

from ...asgi.request import ASGIRequest
from ...http.client_ip import ClientIP
from ...http.local import is_local

Access = Literal["any", "trusted", "admin"]

_HEADER: Final = "X-RateLimit-Admin"
"""Without a token, an admin sends this header. An application that fetches URLs of its users does not send it."""
_FIX: Final = "Start the service with --admin-token-file FILE"


class ProblemError(Exception):
    """Ends a request with this status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def check_admin(request: ASGIRequest, token: str | None, has_gateway: bool) -> None:
    """Raise ``ProblemError`` unless an admin sends the request.

    Args:
        request: A request to the admin API.
        token: The token of the admin API; None for none.
        has_gateway: Whether a gateway uses the service. Clients may reach the API through it.
    """
    if token is not None:
        if not _has_token(request, token):
            raise ProblemError(401, "the admin API needs the header Authorization: Bearer TOKEN")
    elif has_gateway:
        raise ProblemError(403, f"with --gateway, the admin API needs a token. {_FIX}")
    elif not is_local(request):
        raise ProblemError(403, f"from another machine or through a proxy, the admin API needs a token. {_FIX}")
    elif not request.header_lines(_HEADER.lower()):
        raise ProblemError(403, f"without a token, the admin API needs the header {_HEADER}: yes")


def check_trusted(request: ASGIRequest, client_ip: ClientIP) -> None:
    """Raise ``ProblemError`` unless a program of this machine, or one of ``trusted_proxies``, sends the request."""
    if not (is_local(request) or client_ip.trusts(request.peer)):
        message = f"{request.peer} is neither this machine nor one of trusted_proxies. Add it to trusted_proxies"
        raise ProblemError(403, message)


def _has_token(request: ASGIRequest, token: str) -> bool:
    kind, _, given = "".join(request.header_lines("authorization")).partition(" ")
    return kind.lower() == "bearer" and hmac.compare_digest(given.encode("latin-1"), token.encode())
