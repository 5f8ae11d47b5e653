"""What happens to each request of one Flask application: decide, reject or go on, add headers, settle."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import flask
from flask import Flask, Response, g
from werkzeug.exceptions import default_exceptions

from ..decision import Verdict
from ..errors import ConfigError, MissingMiddlewareError
from ..http.admission import Pending, left_of
from ..http.limiter import HttpLimiter
from ..http.rejection import Rejection
from ..http.route_checks import RouteInfo, check_parameters, marks_in
from ..http.views import ViewMarksByMethod
from ..limiter.limiter import Limiter
from ..rules.marks import Mark, ViewMarks, decided, marked_form, marks_of, undecided
from ..rules.plan import Plan
from ..settings.framework import SETTING
from ..wsgi.middleware import DECIDED, VERDICT
from .request import FlaskRequest, template_of

__all__ = ["FlaskHooks"]

_UNMARKED = ViewMarks()
_HIDDEN: Final = (
    "RateLimiter is there, but does not see the limit. Does a decorator above @limit not use functools.wraps,"
    " did another view call this one, or was the limit put on it after the first request?"
)


class _Current:
    """What is kept of one request from hook to hook."""

    def __init__(self, before: frozenset[Mark]) -> None:
        self.before = before
        self.pending: Pending | None = None
        self.status: int | None = None
        self.at_close = False


class FlaskHooks:
    """The limits of one application. Its views are read when the first request comes: by then all are there.

    Whoever looks at them before, as ``check`` does, reads them by himself.
    """

    def __init__(self, app: Flask, guard: HttpLimiter) -> None:
        self._app = app
        self._guard = guard
        self._configured = app.config.get(SETTING)
        self._known: dict[str, ViewMarksByMethod] | None = None
        self._reading = threading.Lock()
        self._key = f"ratelimit_mw.flask.{id(self)}"  # one environment may pass through several applications

    @property
    def limiter(self) -> Limiter:
        return self._guard.limiter

    def views(self) -> dict[str, ViewMarksByMethod]:
        """What is marked by now, by Flask's endpoint. ``ConfigError``, each time, for marks that cannot work."""
        self._check_configured()
        found = {endpoint: self._marked(endpoint) for endpoint in self._app.view_functions}
        self._guard.adopt(view for marked in found.values() for view in marked.all())
        self._check_parameters(found)
        return found

    def _served(self) -> dict[str, ViewMarksByMethod]:
        """``views``, kept from the first request on; read again should there be others after all."""
        known = self._known
        if known is None or len(known) != len(self._app.view_functions):
            with self._reading:
                if self._known is known:
                    self._known = self.views()
                known = self._known
        return known  # type: ignore[return-value] # it was read

    def _check_configured(self) -> None:
        """``ConfigError`` for settings that came too late: nobody would ever read them."""
        if self._app.config.get(SETTING) is not self._configured:
            raise ConfigError("set after init_app, which reads it; set it before", f"app.config[{SETTING!r}]")

    def _check_parameters(self, views: dict[str, ViewMarksByMethod]) -> None:
        """``ConfigError`` for a limit by a parameter that no route has, unless functions of yours may add some."""
        if self._app.url_value_preprocessors:
            return
        rules = self._app.url_map.iter_rules()
        ways = [(rule, views[rule.endpoint].all()) for rule in rules if rule.endpoint in views]
        places = [RouteInfo(template_of(rule.rule), rule.arguments, marks_in(marked)) for rule, marked in ways]
        check_parameters(places, self._guard.rules)

    def _marked(self, endpoint: str) -> ViewMarksByMethod:
        functions = self._app.view_functions
        view: Any = functions[endpoint]
        late = marked_form(view)
        if late is not None and marks_of(view) == _UNMARKED and late not in functions.values():
            view = late  # @limit stands above @app.route, which took the view before it was marked
        names = endpoint.split(".")[:-1]
        outer = [".".join(names[: i + 1]) for i in range(len(names))]
        blueprints = [self._app.blueprints[name] for name in outer if name in self._app.blueprints]
        return ViewMarksByMethod(view, [self._app, *blueprints])

    # -- the hooks, in the order in which Flask calls them ---------------------------------------------------

    def decide(self) -> Any:
        """Before the request. None: it may go on."""
        native: flask.Request = flask.request._get_current_object()  # type: ignore[attr-defined]
        marked = self._served().get(native.endpoint or "")
        view = _UNMARKED if marked is None else marked.of(native.method)
        request = FlaskRequest(native)
        plan = self._plan(request, view)
        current = request.native[self._key] = _Current(decided(view))
        if plan.is_empty:
            g.ratelimit = request.native.get(VERDICT) or Verdict()
            return None
        verdict = self.limiter.decide(plan, self._guard.reader.of(plan, request), request=native)
        current.pending = Pending(self.limiter, plan, verdict, self._guard.writer)
        g.ratelimit = request.native[VERDICT] = verdict
        request.native[DECIDED] = (*request.native.get(DECIDED, ()), self.limiter)
        if not verdict.allowed:
            return self._reject(request, current.pending)
        if plan.may_delay and verdict.delay:
            time.sleep(verdict.delay)
        if plan.has_slots:
            self.limiter.hold(verdict)
        return None

    def add_headers(self, response: Response) -> Response:
        """After the request: ours replace what the application has set under these names."""
        current = self._current()
        if current is not None and current.pending is not None:
            for name, value in current.pending.fields:
                response.headers[name] = value
        return response

    def note_response(self, _app: Flask, response: Response, **_: Any) -> None:
        """The response is final. One that streams keeps its slots, and may state its cost, until it is closed."""
        current = self._current()
        if current is None or current.pending is None:
            return
        current.status = response.status_code
        if current.pending.plan.has_slots:
            response.direct_passthrough = False  # Werkzeug does not close a file that the server sends by itself
        if response.is_streamed and not response.direct_passthrough:
            over, status = current.pending.over, current.status
            # Errors and redirects of Werkzeug come as iterators, too; they are short, and test clients leave them open.
            current.at_close = current.pending.plan.has_slots and status < 300
            response.call_on_close(lambda: over(status))

    def end(self, error: BaseException | None) -> None:
        """The request's context goes, and with it all but the slot of a response that still streams."""
        current = self._current()
        if current is None:
            return
        del flask.request.environ[self._key]
        undecided(current.before)
        if current.pending is not None and not current.at_close:
            failed = 500 if error is None or isinstance(error, Exception) else None
            current.pending.over(current.status or failed)

    def explain(self, _app: Flask, exception: BaseException, **_: Any) -> None:
        """Where a limit was hidden from the extension, the error says by what."""
        if isinstance(exception, MissingMiddlewareError):
            exception.add_note(_HIDDEN)

    # -- how -------------------------------------------------------------------------------------------------

    def _current(self) -> _Current | None:
        return flask.request.environ.get(self._key)

    def _plan(self, request: FlaskRequest, view: ViewMarks) -> Plan:
        plan = self._guard.plan(request, view)
        others = request.native.get(DECIDED, ())
        if others and self._guard.has_decided(others):
            return left_of(plan, request.native[VERDICT].rules)
        return plan

    def _reject(self, request: FlaskRequest, pending: Pending) -> Response:
        """Your own answer; else an error, which an error handler of the application may take."""
        if self._guard.reject is not None:
            answer = self._guard.reject(request.flask, pending.verdict)
            return self._response(answer) if isinstance(answer, Rejection) else self._app.make_response(answer)
        answer = self._guard.rejection(request, pending.verdict, pending.headers)
        error = default_exceptions[answer.status](response=self._response(answer))
        error.verdict = pending.verdict  # type: ignore[attr-defined]
        raise error

    def _response(self, answer: Rejection) -> Response:
        return self._app.response_class(answer.body, answer.status, answer.headers)
