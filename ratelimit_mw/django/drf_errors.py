"""The error of a rejection inside a view of REST framework, whose exception handler responds to it."""

from typing import Any, Final

from rest_framework.exceptions import PermissionDenied, Throttled

from ..decision import RateLimitExceeded, Verdict

_TEXTS: Final[dict[int, tuple[Any, str]]] = {
    403: (PermissionDenied.default_detail, PermissionDenied.default_code),
    503: ("The service is busy. Try again later.", "error"),
}
"""Text and code for a deny list or a ban from all rules, and for an unreachable store or an adaptive limit."""


class APIRejection(RateLimitExceeded, Throttled):  # type: ignore[misc] # REST framework has no types
    """A rejection that is an error of REST framework, too, with the status of the verdict."""

    def __init__(self, verdict: Verdict) -> None:
        text, code = _TEXTS.get(verdict.status, (None, None))
        Throttled.__init__(self, None if text else verdict.retry_after, text, code)  # the texts name no time
        self.verdict, self.status_code = verdict, verdict.status
