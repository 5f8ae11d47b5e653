"""The errors of a rejection inside a view of REST framework, whose exception handler responds to them."""

from typing import Any

from rest_framework.exceptions import APIException, PermissionDenied, Throttled

from ..decision import RateLimitExceeded, Verdict
from ..errors import RateLimitError


class APIRejection(RateLimitExceeded):
    """A rejection that is an error of REST framework, too."""

    def __init__(self, verdict: Verdict, *wait: Any) -> None:
        super(RateLimitError, self).__init__(*wait)  # that of REST framework
        self.verdict = verdict


class RequestThrottled(APIRejection, Throttled):  # type: ignore[misc] # REST framework has no types
    """A 429."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict, verdict.retry_after)


class ClientDenied(APIRejection, PermissionDenied):  # type: ignore[misc]
    """A 403, for a deny list, or for a ban from all rules."""


class StoreUnavailable(APIRejection, APIException):  # type: ignore[misc]
    """A 503, for an unreachable store and ``on_store_error = "deny"``, and for an adaptive limit."""

    status_code = 503
    default_detail = "The service is busy. Try again later."


def api_error(verdict: Verdict) -> RateLimitExceeded:
    """Return the error for a rejection."""
    return {403: ClientDenied, 503: StoreUnavailable}.get(verdict.status, RequestThrottled)(verdict)
