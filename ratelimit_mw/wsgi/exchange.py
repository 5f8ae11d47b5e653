"""One call of a WSGI application: its request, and its response until the body is closed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ..clock import monotonic
from ..decision import Verdict, rejection_of
from ..http.admission import ADMISSION, Admission, undecided
from ..http.headers import Header
from ..http.limits import HttpLimiter, HttpLimits
from ..http.rejection import Rejection
from ..http.request import Request, still_encoded
from ..rules.marks import NOWHERE, get_admission, set_admission
from ..rules.plan import Plan
from .body import read_body

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

_WITHOUT_PREFIX: Final = ("CONTENT_TYPE", "CONTENT_LENGTH")
_NO_STORE: Final = ("Cache-Control", "no-store")
_COMPLETE: Final = ("__len__", "read", "filelike")  # lists, files, and the file wrappers of several servers


@lru_cache(1024)
def environ_key(header: str) -> str:
    """Return the key of the environ that holds a header."""
    key = header.upper().replace("-", "_")
    return key if key in _WITHOUT_PREFIX else f"HTTP_{key}"


class WSGIRequest(Request):
    """A request over a WSGI environ."""

    is_late = False
    """Whether code of the application has run since the request was decided."""

    def __init__(self, environ: MutableMapping[str, Any]) -> None:
        self.native, self.to = environ, NOWHERE

    @property
    def method(self) -> str:
        return self.native["REQUEST_METHOD"].upper()  # type: ignore[no-any-return]

    @property
    def path(self) -> str:
        return self._decode("PATH_INFO") or "/"

    @property
    def sent_path(self) -> str:
        path, raw = self.path, self.native.get("REQUEST_URI") or self.native.get("RAW_URI") or ""
        if "%" in raw:
            path = still_encoded(
                raw.partition("?")[0].encode("latin-1", "replace"), self._decode("SCRIPT_NAME") + path, path
            )
        return self._decode("PATH_INFO", "surrogateescape") if "\ufffd" in path else path

    def _decode(self, name: str, errors: str = "replace") -> str:
        text: str = self.native.get(name, "")
        return text.encode("latin-1").decode(errors=errors)

    @property
    def peer(self) -> str | None:
        address = self.native.get("REMOTE_ADDR") or None
        # waitress writes these two texts for a Unix socket.
        return None if address == "localhost" and self.native.get("REMOTE_PORT") == "None" else address

    @property
    def query_string(self) -> str:
        return self.native.get("QUERY_STRING", "")  # type: ignore[no-any-return]

    def header_lines(self, name: str) -> list[str]:
        """Return one value at most: WSGI servers join lines, and an underscore in a name is lost."""
        value = self.native.get(environ_key(name))
        return [] if value is None else [value]

    def header_pairs(self) -> list[tuple[str, str]]:
        keys = (key for key in self.native if key.startswith("HTTP_") or key in _WITHOUT_PREFIX)
        return [(key.removeprefix("HTTP_").lower().replace("_", "-"), self.native[key]) for key in keys]

    def body(self, limit: int) -> object:
        return read_body(self.native, limit, self.is_late)


def remote_user(request: Request) -> str | None:
    """Return the user that the server has authenticated."""
    return request.native.get("REMOTE_USER") or None


def decide_request(http_limiter: HttpLimiter, request: WSGIRequest) -> tuple[HttpLimits, Plan, Verdict]:
    """Decide a request that arrives. Return the limits that it keeps, its plan, and the verdict."""
    limits, environ = http_limiter.in_force, request.native
    if limits.watch is not None and monotonic() >= limits.watch.due_at:
        limits.watch.look()
        limits = http_limiter.in_force
    plan = limits.rules.plan_for_request(request)
    if ADMISSION in environ or limits.before_user:
        plan = undecided(plan, limits, environ, limits.before_user)
    return limits, plan, limits.limiter.decide(plan, limits.reader.read(plan, request), None, True, request)


class WSGIAdmission(Admission):
    """An admission whose response is sent over WSGI."""

    verdict_key = "ratelimit_mw.verdict"
    request: WSGIRequest

    def build_current_request(self) -> WSGIRequest:
        self.request.is_late = True
        return self.request

    def respond(self, start: Any) -> Iterable[bytes]:
        """Start the response to the rejection, your own or the package's, and return its body."""
        request, custom = self.request, self.limits.custom_rejection
        response: Any = custom and custom(request, self.verdict)
        if response is None:
            response = self.rejection().response
        if not isinstance(response, Rejection):
            return response(request.native, start)  # type: ignore[no-any-return]
        start(f"{response.status} {response.reason}", response.headers)
        return [] if request.method == "HEAD" else [response.body]

    def sent_headers(self, status: str, headers: list[Header]) -> list[Header]:
        """Return the headers of a response that starts, with the rate limit headers."""
        prepared = self._prepared
        if prepared is not None and headers is prepared.response.headers:
            return headers + self.start_response(prepared.response.status)
        added, names = self.start_response(int(status[:3])), self.limits.writer.names
        if not self.verdict.allowed:
            names = frozenset(name.lower() for name, _ in added)
            added = [_NO_STORE] * self.may_be_stored(headers) + added
        if added and not self.keeps_headers(headers):
            headers = [header for header in headers if header[0].lower() not in names] + added
        return headers

    def waits_for(self, body: object) -> bool:
        """Return whether the request lasts until its body is closed: code in it may decide or settle something."""
        return self.has_slots or self.status is None or not _is_complete(body, self.native)


class Exchange:
    """One call of an application. Its admission may come while the application runs."""

    admission: WSGIAdmission | None = None

    def __init__(self, server_start: StartResponse) -> None:
        self._server_start = server_start

    def start(self, status: str, headers: list[Header], exc_info: Any = None) -> Callable[[bytes], object]:
        """Start the response with the rate limit headers: the ``start_response`` of the application."""
        if self.admission is not None:
            headers = self.admission.sent_headers(status, headers)
        if exc_info is None:
            return self._server_start(status, headers)
        try:
            return self._server_start(status, headers, exc_info)
        finally:
            del exc_info  # the traceback would keep every frame of the failure alive

    def run(self, app: WSGIApplication, environ: Any, delay: float = 0.0) -> Iterable[bytes]:
        """Return the body of the response, which ends the admission when it is closed, or has ended it.

        ``delay`` are the seconds in a queue, where they are known before.
        """
        before = get_admission()
        try:
            if self.admission is not None:
                set_admission(self.admission)
            if delay:
                time.sleep(delay)
            body = app(environ, self.start)
            admission = self.admission
            if admission is None:
                return body
            if admission.waits_for(body):
                return ResponseBody(body, admission, self.start)
        except BaseException as error:
            if self.admission is None:
                raise
            return self._fail(self.admission, error)
        finally:
            set_admission(before)
        admission.close(admission.status)
        return body

    def reject(self, admission: WSGIAdmission) -> Iterable[bytes]:
        """Return the body of the response to a rejection, and end the admission with its status."""
        self.admission = admission
        try:
            return admission.respond(self.start)
        finally:
            admission.close(admission.status or 500)

    def _fail(self, admission: WSGIAdmission, error: BaseException) -> Iterable[bytes]:
        """Respond to a rejection that the application has raised before its response. Raise other errors again."""
        admission.note_error(error)
        if (rejection := rejection_of(error)) and admission.status is None:
            admission.verdict = rejection.verdict
            return self.reject(admission)
        # Where the server stops, the outcome is not known.
        admission.close(500 if isinstance(error, Exception) else None)
        raise error


class ResponseBody:
    """The application's iterable, whose code runs in its request. That ends when the iterable is closed or fails.

    ``start`` starts the response to a rejection that this code raises before the response has started.
    ``error_status`` is the status that a client gets where this code fails before its first bytes.
    """

    def __init__(
        self, body: Iterable[Any], admission: Any, start: Callable[..., Any] | None = None, error_status: int = 500
    ) -> None:
        self._body = body
        self._start = start
        self._error_status = error_status
        self._next = iter(body).__next__
        self._admission = admission
        self._has_begun = self._closed = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            part = self._run(self._next)
        except Exception as error:
            if self._start and self._admission.status is None and (rejection := rejection_of(error)):
                self._admission.verdict = rejection.verdict
                self._close_body()
                self._body = self._admission.respond(self._start)
                self._next, self._closed = iter(self._body).__next__, False
                return next(self)
            if not (self._has_begun or isinstance(error, StopIteration)):
                self._admission.status = self._error_status
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

    def _begin(self) -> None:
        """Settle the outcome before the first bytes are sent, which make the status final."""
        self._has_begun, admission = True, self._admission
        if admission.needs_settlement and not admission.ends_with_body:
            admission.is_streamed = True
            admission.end(admission.status)

    def _run(self, step: Callable[[], Any]) -> Any:
        before = get_admission()
        set_admission(self._admission)
        try:
            return step()
        finally:
            set_admission(before)

    def _end(self) -> None:
        self._admission.close(self._admission.status or 500)


def _is_complete(body: Any, environ: Mapping[str, Any]) -> bool:
    """Return whether no code of the application runs in a body: in lists and files, which servers recognize."""
    if isinstance(body, list | tuple) or type(body) is environ.get("wsgi.file_wrapper"):
        return True
    return any(hasattr(body, name) for name in _COMPLETE)
