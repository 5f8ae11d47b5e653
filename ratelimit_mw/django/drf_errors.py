"""The error of a rejection inside a view of REST framework, whose exception handler responds to it."""

from typing import Final

from rest_framework.exceptions import PermissionDenied, Throttled

from ..decision import RateLimitExceeded, Verdict

_DETAILS: Final = {403: PermissionDenied.default_detail, 503: "The service is busy. Try again later."}
"""The texts for a deny list or a ban from all rules, and for an unreachable store or an adaptive limit."""


class APIRejection(RateLimitExceeded, Throttled):  # type: ignore[misc] # REST framework has no types
    """A rejection that is an error of REST framework, too, with the status of the verdict."""

    def __init__(self, verdict: Verdict) -> None:
        detail = _DETAILS.get(verdict.status)
        Throttled.__init__(self, verdict.retry_after, detail and str(detail))  # that of REST framework is lazy
        self.verdict, self.status_code = verdict, verdict.status
