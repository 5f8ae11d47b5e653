"""The admission of a request, even where a test passes the request to a view itself, without the middleware.

``RequestFactory`` of Django and ``APIRequestFactory`` of REST framework make such requests.
"""

from collections.abc import MutableMapping, Sequence
from typing import Any, Final

from django.http import HttpRequest

from ..decision import Verdict
from ..http.rules import DECIDED
from ..rules.guard import FIND_DIRECT
from ..rules.plan import Plan
from .admission import ATTRIBUTE, DjangoAdmission
from .limits import project_limits
from .request import DjangoRequest, keep_data, server_data

_FACTORIES: Final = "django.test.client"


class DirectAdmission(DjangoAdmission):
    """Decides what the view asks for. No middleware sees the response, so each decision is settled at once."""

    def __init__(self, caller: Any) -> None:
        project, native = project_limits(), _native(caller)
        project.routes()  # they add rules to the limiter
        request = DjangoRequest(native)
        data = request.server_data
        data[DECIDED] = {k: each for k, each in data.get(DECIDED, {}).items() if not isinstance(each, DirectAdmission)}
        if not hasattr(native, "user"):
            native.user = getattr(native, "_force_auth_user", None)
        limits = project.limits.in_force.at(data)
        lists = limits.plan(request, request.to).lists
        super().__init__(limits, request, Plan((), lists), Verdict())
        self.caller = caller
        self._reported = 1  # no request of a client: only its decisions have events
        self.end(None)


def admission_of(request: Any, may_be_direct: bool = False) -> DjangoAdmission | None:
    """Return the admission of a request of Django or REST framework; None where the middleware is missing.

    ``may_be_direct``: the caller needs no middleware. Requests of tests never do.
    """
    keep_data(request)
    admission: DjangoAdmission | None = getattr(_native(request), ATTRIBUTE, None)
    # A test may pass one request to several views, and REST framework wraps it anew for each of them.
    if isinstance(admission, DirectAdmission) and admission.caller is not request:
        admission = None
    if admission is None and (may_be_direct or _is_of_test(_native(request))):
        admission = DirectAdmission(request)
    return admission


def data_of(request: Any) -> MutableMapping[str, Any]:
    """Return the WSGI environ or the ASGI scope of a request, with its admissions."""
    admission_of(request)
    return server_data(request)


def _native(request: Any) -> Any:
    return vars(request).get("_request", request)


def _is_of_test(native: Any) -> bool:
    """Return whether a test has made a request of Django and has passed it to a view: no URL was resolved for it."""
    _, port = getattr(native, "scope", {}).get("server") or (None, None)
    body = native.META.get("wsgi.input")
    # In ASGI the port of a real server is a number.
    is_made = type(native) is HttpRequest or type(port) is str or type(body).__module__ == _FACTORIES
    return native.resolver_match is None and is_made


def _find(args: Sequence[Any]) -> DjangoAdmission | None:
    """Return the admission of the request among the arguments of a view, or of the view that is the first of them."""
    for each in (*args, *(getattr(arg, "request", None) for arg in args[:1])):
        if isinstance(getattr(each, "_request", each), HttpRequest):
            return DirectAdmission(each) if _is_of_test(_native(each)) else None
    return None


FIND_DIRECT.append(_find)
