"""The ``Admission`` of a Flask request, whose rejections are errors of Werkzeug."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from flask import Response, current_app, g, has_app_context
from werkzeug.exceptions import HTTPException, default_exceptions

from ..decision import Verdict
from ..errors import RateLimitExceeded
from ..http.admission import Admission
from ..http.rejection import Rejection
from ..rules.guard import Decider
from .request import FlaskRequest


class FlaskAdmission(Admission):
    """Shows all decisions in ``flask.g.ratelimit``."""

    request: FlaskRequest
    before: Decider | None
    """The request of this thread before this one."""

    def renew(self) -> FlaskRequest:
        return FlaskRequest(self.request.framework_request)

    def show(self) -> None:
        if has_app_context():  # a stream may run without one
            g.ratelimit = self.shown

    def error(self, verdict: Verdict) -> RateLimitExceeded:
        return cast(RateLimitExceeded, self.http_error(verdict, _RAISED))

    def http_error(self, verdict: Verdict, kinds: Mapping[int, type[_Rejected]] | None = None) -> _Rejected:
        """Return a rejection as the error of Werkzeug that error handlers for its status receive."""
        error = (kinds or _HANDLED)[verdict.status](RateLimitExceeded.describe(verdict))
        error.verdict, error.admission = verdict, self
        if self.limits.reject:
            error.code = None  # your function responds, and no error handler
        return error

    def own_response(self) -> Any:
        """Return what your function returns for the rejection, else the response of the package."""
        reject = self.limits.reject
        response = reject(self.request.framework_request, self.verdict) if reject else self.rejection()
        if isinstance(response, Rejection):
            return current_app.response_class(response.body, response.status, response.headers)
        return response


class _Rejected(HTTPException):
    """A rejection as an error of Werkzeug."""

    verdict: Verdict
    admission: FlaskAdmission

    def get_response(self, *_: Any, **__: Any) -> Response:
        """Return the response, built when no error handler takes the error."""
        self.admission.verdict = self.verdict
        return current_app.make_response(self.admission.own_response())


class _Raised(RateLimitExceeded):
    """A rejection as views catch it."""

    def __init__(self, description: str) -> None:
        HTTPException.__init__(self, description)  # type: ignore[arg-type] # it is one, too


def _errors(*mixins: type) -> dict[int, type[_Rejected]]:
    """Return the error class of each status. It is a subclass of Werkzeug's own."""
    kinds = {status: default_exceptions[status] for status in (429, 403, 503)}
    return {status: type(kind.__name__, (*mixins, kind), {}) for status, kind in kinds.items()}


_HANDLED: Final = _errors(_Rejected)
_RAISED: Final = _errors(_Raised, _Rejected)
