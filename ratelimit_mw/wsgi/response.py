"""The response of a WSGI application: its start with the rate limit headers, and its body until it is closed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from ..decision import Verdict
from ..errors import RateLimitExceeded
from ..http.admission import Admission
from ..http.headers import TextHeader
from ..http.limits import DECIDED
from ..http.rejection import Rejection
from ..rules.decorators import marks_made
from ..rules.guard import current
from .request import VERDICT, WSGIRequest

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse


_COMPLETE: Final = ("__len__", "read", "filelike")  # lists, files, and the file wrappers of several servers


class WSGIAdmission(Admission):
    """An admission whose response is sent over WSGI."""

    request: WSGIRequest
    server_start: StartResponse
    """The ``start_response`` of the server."""

    def renew(self) -> WSGIRequest:
        self.request.is_late = True
        return self.request

    def show(self) -> None:
        self.native[VERDICT] = self.shown

    def reject(self, verdict: Verdict) -> Iterable[bytes]:
        """Start the response to a rejection, your own or the package's, and return its body."""
        self.verdict, request, reject = verdict, self.request, self.limits.reject
        response: Any = self.rejection() if reject is None else reject(request, verdict)
        if not isinstance(response, Rejection):
            return response(request.native, self.start)  # type: ignore[no-any-return]
        self.start(f"{response.status} {response.reason}", response.headers)
        return [] if request.method == "HEAD" else [response.body]

    def start(self, status: str, headers: list[TextHeader], exc_info: Any = None) -> Callable[[bytes], object]:
        """Start the response with the rate limit headers: the ``start_response`` of the application."""
        removed = self.read_costs(headers) if self.true_costs else ()
        added = self.text_headers(int(status[:3]))
        if added and not self.keeps_headers(headers):
            names = self.limits.writer.text_names if self.verdict.allowed else {name.lower() for name, _ in added}
            headers = [header for header in headers if header[0].lower() not in names] + added
        if removed:
            headers = [header for header in headers if header[0].lower() not in removed]
        if exc_info is None:
            return self.server_start(status, headers)
        try:
            return self.server_start(status, headers, exc_info)
        finally:
            del exc_info  # the traceback would keep every frame of the failure alive

    def ends_with(self, body: object) -> bool:
        """Return whether the request lasts until its body is closed, because something is settled or decided then."""
        if self.needs_settlement and (self.has_slots or self.status is None):
            return True
        if self.needs_settlement or self.limits.has_names or marks_made or self._has_open_inner:
            return not _is_complete(body, self.native)
        return False

    @property
    def _has_open_inner(self) -> bool:
        """Whether an inner middleware waits for the body. Its code may name the rules of that one."""
        innermost = next(reversed(self.native.get(DECIDED, {}).values()), self)
        return innermost is not self


class ResponseBody:
    """The application's iterable, whose code runs in its request. That ends when the iterable is closed or fails.

    ``reject`` responds to a rejection that this code raises before the response has started.
    """

    def __init__(
        self, body: Iterable[Any], admission: Admission, reject: Callable[[Verdict], Iterable[bytes]] | None = None
    ) -> None:
        self._body = body
        self._reject = reject
        self._next = iter(body).__next__
        self._admission = admission
        self._has_begun = self._closed = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            part = self._run(self._next)
        except Exception as error:
            if self._reject and isinstance(error, RateLimitExceeded) and self._admission.status is None:
                self._replace(self._reject, error.verdict)
                return next(self)
            self._end()  # not every server closes an iterable that it has read to its end
            raise
        if part and not self._has_begun:
            self._begin()
        return part

    def close(self) -> None:
        try:
            self._close_body()
        finally:
            self._end()

    def _close_body(self) -> None:
        if not self._closed and hasattr(self._body, "close"):
            self._closed = True
            self._run(self._body.close)

    def _replace(self, reject: Callable[[Verdict], Iterable[bytes]], verdict: Verdict) -> None:
        self._close_body()
        self._body = reject(verdict)
        self._next, self._closed = iter(self._body).__next__, False

    def _begin(self) -> None:
        """Settle the outcome before the first bytes are sent, which make the status final."""
        self._has_begun, admission = True, self._admission
        if admission.needs_settlement and not admission.ends_with_body:
            admission.is_streamed = True
            admission.end(admission.status)

    def _run(self, step: Callable[[], Any]) -> Any:
        before = current.get()
        current.set(self._admission)
        try:
            return step()
        finally:
            current.set(before)

    def _end(self) -> None:
        self._admission.close(self._admission.status or 500)


def _is_complete(body: Any, environ: Mapping[str, Any]) -> bool:
    """Return whether no code of the application runs in a body: in lists and files, which servers recognize."""
    return type(body) is environ.get("wsgi.file_wrapper") or any(hasattr(body, name) for name in _COMPLETE)
