"""The access to the API and the dashboard, which need the token."""

from ...asgi.request import ASGIRequest
from ...http.token import CHALLENGE, has_token


class ProblemError(Exception):
    """Ends a request with this status, a message, and the headers of the response."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def check_token(request: ASGIRequest, token: str) -> None:
    """Raise ``ProblemError`` unless the request has the token."""
    if not has_token(request, token, "bearer"):
        raise ProblemError(401, f"{request.path} needs the header Authorization: Bearer TOKEN")


def check_reader(request: ASGIRequest, token: str) -> None:
    """Raise ``ProblemError`` unless the request to the dashboard has the token, which browsers send as a password."""
    if not has_token(request, token, "bearer", "basic"):
        raise ProblemError(401, "the dashboard needs the admin token as the password", www_authenticate=CHALLENGE)
