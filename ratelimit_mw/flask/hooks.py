"""The hooks that Flask calls for each request: decide it, add the headers, settle it."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MethodType
from typing import Any, Final

import flask
from flask import Flask, Response, g
from flask.globals import request_ctx

from ..decision import Verdict
from ..errors import ConfigError, RateLimitExceeded
from ..http.limits import DECIDED, HttpLimiter, HttpLimits
from ..http.notes import NO_LOGIN, applications_read, log_all, log_notes, notes_on_users
from ..http.routes import Route, ViewMarksByMethod, check_parameters, check_routes
from ..rules.guard import current
from ..rules.marks import ViewMarks, destination, marked_form, marks_of, readers
from ..rules.plan import Plan
from ..settings.framework import SETTING
from ..wsgi.request import VERDICT
from ..wsgi.response import ResponseBody
from ..wsgi.url_map import routes_of as routes_of_map
from .admission import FlaskAdmission
from .request import SENT_PARAMS, FlaskRequest

_ADMISSION: Final = "_ratelimit_mw"
_UNMARKED: Final = ViewMarks()


class FlaskHooks:
    """The limits of one application. Its views are read at the first request, when all of them are registered."""

    def __init__(self, app: Flask, limits: HttpLimiter) -> None:
        self._app = app
        self.limits = limits
        self._configured = app.config.get(SETTING)
        self._views: dict[str, ViewMarksByMethod] | None = None
        self._reading = threading.Lock()
        self.limiter = limits.limiter
        readers.add(self)

    def read_views(self) -> dict[str, ViewMarksByMethod]:
        """Return the marks of all views, by Flask's endpoint. Raises ``ConfigError`` for marks that cannot work."""
        if self._app.config.get(SETTING) is not self._configured:
            raise ConfigError("set after init_app, which reads it. Set it before", f"app.config[{SETTING!r}]")
        applications_read[id(self._app)] = self._app
        views = {endpoint: _marked_view(self._app, endpoint) for endpoint in self._app.view_functions}
        routes = routes_of(self._app, views)

        def check(rules: HttpLimits) -> None:
            if not self._has_preprocessors():  # these may add parameters
                check_parameters(routes, rules.rules)
            check_routes(routes, rules.rules)

        self.limits.adopt((marks for view in views.values() for marks in view.all()), check=check)
        return views

    def notes(self) -> Iterator[str]:
        """Yield notes on the user, which only Flask-Login, WSGI middleware or the server provides."""
        if not hasattr(self._app, "login_manager") and self._app.wsgi_app == MethodType(Flask.wsgi_app, self._app):
            yield from notes_on_users(self.limits, NO_LOGIN)

    def forget_marks(self) -> None:
        """Read the views again at the next request, because a blueprint has another mark."""
        self._views = None

    def _has_preprocessors(self) -> bool:
        every = self._app.url_value_preprocessors.values()
        return any(function != self.keep_parameters for functions in every for function in functions)

    def _current_views(self) -> dict[str, ViewMarksByMethod]:
        """Return the views, read again if there are others since the last request."""
        views = self._views
        if views is None or len(views) != len(self._app.view_functions):
            with self._reading:
                if self._views is views:
                    self._views = self.read_views()
                    log_notes(self.limits)
                    log_all(*self.notes())
                views = self._views
        return views  # type: ignore[return-value] # it was read

    def keep_parameters(self, _endpoint: str | None, values: dict[str, Any] | None) -> None:
        """Run when the route is found, before functions that remove a language or a tenant from its parameters."""
        flask.request.environ[SENT_PARAMS] = dict(values or {})

    def decide(self) -> Any:
        """Run before the request. None lets it continue."""
        native: flask.Request = flask.request._get_current_object()  # type: ignore[attr-defined]
        view = self._current_views().get(native.endpoint or "")
        marks = _UNMARKED if view is None else marks_for(view, native.method, native.url_rule)
        request = FlaskRequest(native)
        environ = request.native
        limits = self.limits.in_force
        if limits.watch is not None:
            limits = limits.at()
        plan = limits.plan(request, destination(request.endpoint, request.rule.endpoint if request.rule else "", marks))
        if DECIDED in environ:
            plan = limits.undecided(plan, environ)
        verdict = limits.decide(plan, request)
        admission = self._admit(limits, request, plan, verdict)
        admission.enter(marks)
        if not verdict.allowed:
            return self._reject(admission)
        if plan.may_delay and verdict.delay:
            time.sleep(verdict.delay)
        return None

    def add_headers(self, response: Response) -> Response:
        """Run after the request: the rate limit headers replace those of the application."""
        if admission := _admission():
            for name in admission.read_costs(response.headers) if admission.true_costs else ():
                response.headers.pop(name, None)
            added = admission.text_headers(response.status_code)
            for name, value in () if admission.keeps_headers(response.headers) else added:
                response.headers[name] = value
        return response

    def end_with_response(self, _app: Flask, response: Response, **_: Any) -> None:
        """Run for the final response. A stream runs in its request, and holds its slots, until it is closed."""
        admission = _admission()
        if admission is None:
            return
        status = admission.status = response.status_code
        if admission.ends_with_body:
            response.direct_passthrough = False  # Werkzeug does not close a file that the server sends
        admission.is_streamed = response.is_streamed and not response.direct_passthrough
        if admission.is_streamed:
            response.response = ResponseBody(response.response, admission)
            current.set(admission.before)
            # Werkzeug's errors and redirects are streamed too. They are short, and test clients do not close them.
            if not (admission.ends_with_body and status < 300):
                admission.end(status)

    def end(self, error: BaseException | None) -> None:
        """Run when the request's context ends. A copy of the context, in another thread, has no admission."""
        admission = _admission()
        if admission is None or admission.is_streamed:
            return
        delattr(request_ctx, _ADMISSION)
        current.set(admission.before)
        admission.close(admission.status or (500 if error is None or isinstance(error, Exception) else None))

    def respond(self, error: RateLimitExceeded) -> Any:
        """Run for a rejection that code of the application has raised, where the application has no handler for it."""
        request: flask.Request = flask.request._get_current_object()  # type: ignore[attr-defined]
        admission = _admission() or self._admit_early(FlaskRequest(request))
        admission.verdict = error.verdict
        return self._app.handle_http_exception(admission.http_error(error.verdict))

    def handle_exception(self, make_error: Callable[..., Response], *context: Any) -> Response:
        """Run for an error that an error handler has raised, or a function before or after the request.

        ``make_error`` is Flask's own method, which makes a 500 of it. The error is the last argument.
        """
        if not isinstance(context[-1], RateLimitExceeded):
            return make_error(*context)
        finish: Callable[..., Response] = self._app.finalize_request
        try:
            rejection = self._app.handle_user_exception(*context)
        except Exception as failure:  # of an error handler
            return make_error(*context[:-1], failure)
        return self.add_headers(finish(*context[:-1], rejection, from_error_handler=True))

    def _admit_early(self, request: FlaskRequest) -> FlaskAdmission:
        """Admit a request that code of the application rejects before ``decide``."""
        return self._admit(self.limits.in_force, request, Plan([]), Verdict())

    def _admit(self, limits: HttpLimits, request: FlaskRequest, plan: Plan, verdict: Verdict) -> FlaskAdmission:
        environ = request.native
        admission = FlaskAdmission(limits, request, plan, verdict, environ, environ, VERDICT)
        admission.before = current.get()
        setattr(request_ctx, _ADMISSION, admission)
        g.ratelimit = environ[VERDICT]
        return admission

    def _reject(self, admission: FlaskAdmission) -> Response:
        """Return your own response, or raise an error that an error handler of the application may handle."""
        if self.limits.reject:
            return self._app.make_response(admission.own_response())
        raise admission.error(admission.verdict)


def _admission() -> FlaskAdmission | None:
    """Return the admission of this context, not of its environ, which copies of the context and other apps share."""
    return getattr(request_ctx, _ADMISSION, None)


def _marked_view(app: Flask, endpoint: str) -> ViewMarksByMethod:
    """Return the marks of the view of Flask's ``endpoint``, with those of its blueprints and the application."""
    view: Any = app.view_functions[endpoint]
    form = marked_form(view)
    if form is not None and marks_of(view) == _UNMARKED and form not in app.view_functions.values():
        view = form  # @limit is above @app.route, which registered the view before it was marked
    outer = itertools.accumulate(endpoint.split(".")[:-1], "{}.{}".format)
    blueprints = [app.blueprints[name] for name in outer if name in app.blueprints]
    marked = ViewMarksByMethod(view, [app, *blueprints])
    if marks_of(view) == _UNMARKED and _serves_files(view, endpoint):
        marked.common = replace(marked.common, is_static=True)
    return marked


def _serves_files(view: Any, endpoint: str) -> bool:
    """Return whether it is the view that Flask adds for the static files of an application or a blueprint."""
    return endpoint.rpartition(".")[2] == "static" and str(getattr(view, "__module__", "")).partition(".")[0] == "flask"


def marks_for(view: ViewMarksByMethod, method: str, rule: Any) -> ViewMarks:
    """Return the marks for a request to a URL rule. Flask may respond to ``OPTIONS`` automatically."""
    marks = view.by_method.get(method) or view.common  # for_method, without a call
    is_automatic = method == "OPTIONS" and getattr(rule, "provide_automatic_options", False)
    return replace(marks, answers_options=True) if is_automatic else marks


def routes_of(app: Flask, views: Mapping[str, ViewMarksByMethod]) -> list[Route]:
    def marks_of(rule: Any, method: str) -> ViewMarks | None:
        return marks_for(view, method, rule) if (view := views.get(rule.endpoint)) else None

    return list(routes_of_map(app.url_map, marks_of))
