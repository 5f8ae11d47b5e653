"""The clients that may use a part of the API: all, trusted programs, or admins."""

from typing import Literal

from ...asgi.request import ASGIRequest
from ...http.client_ip import ClientIP
from ...http.local import is_local
from ...http.token import CHALLENGE, has_token

Access = Literal["any", "trusted", "admin"]


class ProblemError(Exception):
    """Ends a request with this status, a message, and the headers of the response."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def check_admin(request: ASGIRequest, token: str) -> None:
    """Raise ``ProblemError`` unless the request has the token."""
    if not has_token(request, token, "bearer"):
        raise ProblemError(401, "the admin API needs the header Authorization: Bearer TOKEN")


def check_reader(request: ASGIRequest, token: str) -> None:
    """Raise ``ProblemError`` unless the request to the dashboard has the token, which browsers send as a password."""
    if not has_token(request, token, "bearer", "basic"):
        raise ProblemError(401, "the dashboard needs the admin token as the password", www_authenticate=CHALLENGE)


def check_trusted(request: ASGIRequest, client_ip: ClientIP) -> None:
    """Raise ``ProblemError`` unless a program of this machine, or one of ``trusted_proxies``, sends the request."""
    if not (is_local(request) or client_ip.trusts(request.peer)):
        message = f"{request.peer} is neither this machine nor one of trusted_proxies. Add it to trusted_proxies"
        raise ProblemError(403, message)
