"""WSGI middleware. Translates the protocol and nothing else: no counting, no rules, no headers of its own.

app = RateLimitMiddleware(app, settings="ratelimit.toml")
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Unpack

from ..decision import Verdict
from ..errors import ConfigError
from ..http.headers import TextHeader, as_text
from ..http.limiter import HttpLimiter, HttpOptions, SettingsSource
from ..http.rejection import Rejection
from ..http.request import Request
from ..limiter.limiter import Limiter
from .body import read_body

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["DECIDED", "VERDICT", "RateLimitMiddleware", "WSGIRequest"]

VERDICT = "ratelimit_mw.verdict"
DECIDED = "ratelimit_mw.decided"


class WSGIRequest(Request):
    """A request over a WSGI environ."""

    @property
    def method(self) -> str:
        return self.native["REQUEST_METHOD"].upper()  # type: ignore[no-any-return]

    @property
    def path(self) -> str:
        path: str = self.native.get("PATH_INFO", "")
        return path.encode("latin-1").decode("utf-8", "replace") or "/"

    @property
    def peer(self) -> str | None:
        return self.native.get("REMOTE_ADDR") or None

    @property
    def query_string(self) -> str:
        return self.native.get("QUERY_STRING", "")  # type: ignore[no-any-return]

    def header_lines(self, name: str) -> list[str]:
        """WSGI servers join the lines of one name; a name with an underscore cannot be asked for."""
        key = name.upper().replace("-", "_")
        value = self.native.get(key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}")
        return [] if value is None else [value]

    def header_names(self) -> list[str]:
        return [key[5:].lower().replace("_", "-") for key in self.native if key.startswith("HTTP_")]

    def body(self, limit: int) -> object:
        return read_body(self.native, limit)

    def one_of(self, values: list[str]) -> str:
        return values[0]


def _user(request: Request) -> str | None:
    """Whom the server has authenticated."""
    return request.native.get("REMOTE_USER") or None


class RateLimitMiddleware:
    """Decides every request by the rules; rejects it, or adds the headers to its response.

    Give it ``settings`` (a file, a dictionary or ``Settings``) or a ``limiter``. ``features`` are your own
    functions of the request, by feature name; ``rejection`` is your own answer: a function of the request and the
    verdict that returns a ``Rejection`` or a WSGI application. ``trusted_proxies``, ``headers`` and the other HTTP
    settings may be given here too. Raises ``ConfigError`` when built for what cannot work.

    The application finds the verdict in ``environ["ratelimit_mw.verdict"]``. A request that has to queue
    (leaky-bucket queue) sleeps in its worker thread.
    """

    def __init__(
        self,
        app: WSGIApplication,
        settings: SettingsSource | None = None,
        *,
        limiter: Limiter | None = None,
        features: Mapping[str, Callable[[Any], Any]] | None = None,
        rejection: Callable[[WSGIRequest, Verdict], Any] | None = None,
        **options: Unpack[HttpOptions],
    ) -> None:
        self.app = app
        self._guard = HttpLimiter(settings, limiter, features or {}, rejection, _user, options)
        self.limiter = self._guard.limiter
        if self._guard.reader.must_await:
            raise ConfigError("an async function cannot be awaited under WSGI", "features")
        self._guard.adopt_no_routes()
        self._names = frozenset(name.decode("ascii") for name in self._guard.writer.names)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = WSGIRequest(environ)
        plan = self._guard.plan(request)
        decided = environ.get(DECIDED, ())
        if plan.is_empty or (decided and self._guard.has_decided(decided)):
            if VERDICT not in environ:
                environ[VERDICT] = Verdict()
            return self.app(environ, start_response)
        features = self._guard.reader.of(plan, request)
        verdict = self.limiter.decide(plan, features, request=request)
        environ[VERDICT] = verdict
        environ[DECIDED] = (*decided, self.limiter)
        if not verdict.allowed:
            return self._reject(request, verdict, start_response)
        response = _Response(start_response, as_text(self._guard.writer.headers(verdict)), self._names)
        app = _Queued(self.app, verdict.delay) if plan.may_delay and verdict.delay else self.app
        if plan.needs_settlement:
            self.limiter.hold(verdict)
            return _Concluded(app, environ, response, verdict, self.limiter)
        try:
            # Handed on as it is, so that servers still see their file wrappers and lengths.
            return app(environ, response.start)
        finally:
            verdict.receipt.settle_with(self.limiter)  # a cost that is stated from now on is settled at once

    def _reject(self, request: WSGIRequest, verdict: Verdict, start_response: StartResponse) -> Iterable[bytes]:
        headers = self._guard.writer.headers(verdict)
        added = as_text(headers)
        response = _Response(start_response, added, frozenset(name.lower() for name, _ in added))
        if self._guard.reject is None:
            answer: Any = self._guard.rejection(request, verdict, headers)
        else:
            answer = self._guard.reject(request, verdict)
        if not isinstance(answer, Rejection):
            return answer(request.native, response.start)  # type: ignore[no-any-return]
        response.start(f"{answer.status} {answer.reason}", answer.headers)
        return [] if request.method == "HEAD" else [answer.body]


class _Response:
    """Starts the response with a new header list: ours replace what the application set under these names.

    ``names`` are in lower case, as case says nothing in a header's name.
    """

    def __init__(self, start_response: StartResponse, headers: list[TextHeader], names: frozenset[str]) -> None:
        self._start_response = start_response
        self._headers = headers
        self._names = names
        self.status = 500  # what the server answers when the application raises before it has answered

    def start(self, status: str, headers: list[TextHeader], exc_info: Any = None) -> Callable[[bytes], object]:
        self.status = int(status[:3])
        headers = [header for header in headers if header[0].lower() not in self._names] + self._headers
        if exc_info is None:
            return self._start_response(status, headers)
        try:
            return self._start_response(status, headers, exc_info)
        finally:
            del exc_info  # it would keep every frame of the failure alive


class _Queued:
    """The application, once a request's turn has come."""

    def __init__(self, app: WSGIApplication, delay: float) -> None:
        self._app = app
        self._delay = delay

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        time.sleep(self._delay)
        return self._app(environ, start_response)


class _Concluded:
    """The application's iterable, with what the outcome decides settled once it ends, however it ends."""

    def __init__(
        self,
        app: WSGIApplication,
        environ: MutableMapping[str, Any],
        response: _Response,
        verdict: Verdict,
        limiter: Limiter,
    ) -> None:
        self._response = response
        self._verdict = verdict
        self._limiter = limiter
        self._open = True
        self._concluded_with: object = self  # no cost, not even None
        try:
            self._body = app(environ, response.start)  # type: ignore[arg-type]
            self._chunks = iter(self._body)
        except Exception:
            self._conclude()
            raise
        except BaseException:
            limiter.conclude(verdict, None)  # told to stop: nobody knows how it would have ended
            raise

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._chunks)
        except Exception:
            self._conclude()  # not all clients close what they have read to its end
            raise

    def close(self) -> None:
        try:
            if self._open and hasattr(self._body, "close"):
                self._open = False
                self._body.close()
        finally:
            self._conclude()

    def _conclude(self) -> None:
        """Once; again only for a cost that was stated since."""
        if self._concluded_with != self._verdict.true_cost:
            self._concluded_with = self._verdict.true_cost
            self._limiter.conclude(self._verdict, self._response.status)
