"""The rejections of a Flask application, which are errors of Werkzeug, too."""

from collections.abc import Callable
from typing import Any, Final

from flask import Response
from werkzeug.exceptions import HTTPException, default_exceptions

from ..decision import RateLimitExceeded, Verdict


class Rejected(HTTPException):
    """A rejection as an error of Werkzeug. ``respond`` builds the response when no error handler takes the error."""

    verdict: Verdict
    respond: Callable[[Verdict], Response]

    def get_response(self, *_: Any, **__: Any) -> Response:
        return self.respond(self.verdict)


class _Raised(RateLimitExceeded):
    """A rejection as views catch it."""

    def __init__(self, description: str) -> None:
        HTTPException.__init__(self, description)  # type: ignore[arg-type] # it is one, too


def _errors(*mixins: type) -> dict[int, type[Rejected]]:
    """Return the error class of each status. It is a subclass of Werkzeug's own."""
    kinds = {status: default_exceptions[status] for status in (429, 403, 503)}
    return {status: type(kind.__name__, (*mixins, kind), {}) for status, kind in kinds.items()}


HANDLED: Final = _errors(Rejected)
"""The errors that the error handlers for their status receive."""
RAISED: Final = _errors(_Raised, Rejected)
"""The same errors as views catch them: each is a ``RateLimitExceeded``, too."""
