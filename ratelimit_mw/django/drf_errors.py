"""The errors of a rejection inside a view of REST framework, whose exception handler responds to them."""

from typing import Any

from rest_framework.exceptions import APIException, PermissionDenied, Throttled

from ..decision import RateLimitExceeded, Verdict
from ..errors import RateLimitError


class APIRejection(RateLimitExceeded):
    """A rejection that is an error of REST framework, too."""

    def __init__(self, verdict: Verdict, *args: Any) -> None:
        super(RateLimitError, self).__init__(*args)  # that of REST framework
        self.verdict = verdict

    def __reduce__(self) -> tuple[Any, ...]:
        return api_error, (self.verdict,)


class RequestThrottled(APIRejection, Throttled):  # type: ignore[misc] # REST framework has no types
    """A 429."""


class ClientDenied(APIRejection, PermissionDenied):  # type: ignore[misc]
    """A 403, for a deny list, or for a ban with ``status = 403``."""


class StoreUnavailable(APIRejection, APIException):  # type: ignore[misc]
    """A 503, for an unreachable store and ``on_store_error = "deny"``, and for an adaptive limit."""

    status_code = 503
    default_detail = "The service is busy. Try again later."


def api_error(verdict: Verdict) -> RateLimitExceeded:
    """Return the error for a rejection."""
    if verdict.status == ClientDenied.status_code:
        return ClientDenied(verdict)
    return (
        StoreUnavailable(verdict)
        if verdict.status == StoreUnavailable.status_code
        else RequestThrottled(verdict, verdict.retry_after)
    )
