"""The limits of one Flask application: they decide before each request, inside a WSGI layer that owns the response."""

import io
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any, Final, cast

import flask
from flask import Flask, Response, current_app, g, has_app_context, has_request_context
from flask.globals import request_ctx
from werkzeug.exceptions import MethodNotAllowed

from ..decision import RateLimitExceeded, Verdict
from ..errors import ConfigError
from ..http.body import Body
from ..http.limits import DECIDED, HttpLimiter, HttpLimits
from ..http.rejection import Rejection
from ..http.request import Request
from ..http.routes import Route, ViewMarksByMethod
from ..http.warnings import warn, warn_at_start, warnings_of_user
from ..keys.features import UNMATCHED
from ..rules.marks import ViewMarks, destination, marked_form, marks_of, readers
from ..rules.plan import Plan
from ..settings.framework import SETTING
from ..wsgi.body import read_body
from ..wsgi.exchange import VERDICT, Exchange, WSGIAdmission, WSGIRequest, remote_user
from ..wsgi.url_map import check_map, route_template, rule_of_path
from ..wsgi.url_map import routes_of as routes_of_map
from .errors import HANDLED, RAISED, Rejected

try:
    from flask_login import current_user
except ImportError:  # optional: an application may identify its users otherwise
    current_user = None

EXTENSION: Final = "ratelimit_mw"
_EXCHANGE: Final = "ratelimit_mw.flask.exchange"
"""The key in the environ for the call of the application."""
_SENT_PARAMS: Final = "ratelimit_mw.flask.params"
"""The key in the environ for the parameters of the path before any function of the application changed them."""
_NO_LOGIN: Final = (
    "the application has no LoginManager of Flask-Login, and most servers set no REMOTE_USER. Add one before the first"
    " request"
)
_UNMARKED: Final = ViewMarks()
_FIRST_SHORT: Final = 300
"""From this status on, responses hold no slots while they are sent."""


class FlaskRequest(WSGIRequest):
    """A request over Flask's own, which is ``framework_request``."""

    def __init__(self, request: flask.Request) -> None:
        super().__init__(request.environ)
        self.framework_request = request
        rule: Any = request.url_rule
        now: Mapping[str, Any] = request.view_args or {}
        error = request.routing_exception
        if isinstance(error, MethodNotAllowed):
            rule, now = _rule_without_view(request, error)
        self.rule = rule
        self.endpoint = UNMATCHED if rule is None else route_template(rule.rule)
        # Functions of the application may have removed parameters since the route was found, added some, replaced them
        # by objects, or merged their spellings.
        sent = request.environ.get(_SENT_PARAMS, {})
        same = {name: value for name, value in now.items() if name not in sent or type(value) is type(sent[name])}
        self.path_params = {**sent, **same}
        cached = vars(request)
        if cached.get("form") or cached.get("files"):
            self.parsed_body = Body.from_form(request.form.items(multi=True), request.files)

    @property
    def view(self) -> str:  # type: ignore[override]
        return UNMATCHED if self.rule is None else self.rule.endpoint

    def body(self, limit: int) -> object:
        """Read what Flask keeps of the body where a function before ours has read it already, else the rest of it."""
        request, cached = self.framework_request, vars(self.framework_request)
        if "stream" not in cached:
            return super().body(limit)
        kept = cached.get("_cached_data")
        environ = {**request.environ, "wsgi.input": request.stream if kept is None else io.BytesIO(kept)}
        content = read_body(environ, limit, is_late=True)
        if kept is None:
            cached["stream"] = environ["wsgi.input"]
        return content


def _rule_without_view(request: flask.Request, error: MethodNotAllowed) -> tuple[Any, Mapping[str, Any]]:
    """Return the rule of the path of a 405, and its parameters. Outside its context no rule is known."""
    urls = request_ctx.url_adapter if has_request_context() and request_ctx.request is request else None
    return rule_of_path(urls, error) if urls else (None, {})


def flask_user(request: Request) -> str | None:
    """Return the user of Flask-Login, where the application uses it; else the user that the server authenticated.

    The ``Authorization`` header alone is no user: the client chooses its value.
    """
    if current_user is not None and hasattr(flask.current_app, "login_manager") and current_user.is_authenticated:
        return str(current_user.get_id())
    return remote_user(request)


class FlaskAdmission(WSGIAdmission):
    """Shows all decisions in ``flask.g.ratelimit``. Its rejections are errors of Werkzeug."""

    streams = False
    """Whether the response is a stream, and not a text or a file that the server sends."""

    def renew(self) -> FlaskRequest:
        return FlaskRequest(self.request.framework_request)

    def show(self) -> None:
        if has_app_context():  # a stream may run without one
            g.ratelimit = self.shown

    def ends_with(self, body: object) -> bool:
        # Werkzeug's errors and redirects are streamed too. They are short, and test clients do not close them.
        is_short = (self.status or 0) >= _FIRST_SHORT
        return self.streams and not is_short and super().ends_with(body)

    def error(self, verdict: Verdict) -> RateLimitExceeded:
        return cast(RateLimitExceeded, self.http_error(verdict, RAISED))

    def http_error(
        self, verdict: Verdict, kinds: Mapping[int, type[Rejected]] = HANDLED, description: str | None = None
    ) -> Rejected:
        """Return a rejection as the error of Werkzeug that error handlers for its status receive."""
        error = kinds[verdict.status](description or RateLimitExceeded.describe(verdict))
        error.verdict, error.respond = verdict, self.response_to
        if self.limits.reject:
            error.code = None  # your function responds, and no error handler
        return error

    def response_to(self, verdict: Verdict) -> Response:
        """Return the response to a rejection: that of your function, else that of the package."""
        self.verdict, reject = verdict, self.limits.reject
        response = reject(self.request.framework_request, verdict) if reject else self.rejection()
        if isinstance(response, Rejection):
            return current_app.response_class(response.body, response.status, response.headers)
        return current_app.make_response(response)


class FlaskHooks:
    """The limits of one application. Its views are read at the first request, when all of them are registered."""

    def __init__(self, app: Flask, limits: HttpLimiter) -> None:
        self._app = app
        self.app = app.wsgi_app
        self.limits = limits
        self._configured = app.config.get(SETTING)
        self._views: dict[str, ViewMarksByMethod] | None = None
        self._reading = threading.Lock()
        self.limiter = limits.limiter
        readers.add(self)
        app.wsgi_app = self.run  # type: ignore[method-assign]
        app.handle_exception = partial(self.handle_exception, app.handle_exception)  # type: ignore[method-assign]
        app.url_value_preprocessors[None].insert(0, self.keep_parameters)
        app.before_request(self.decide)
        app.after_request_funcs[None].insert(0, self.note_stream)  # Flask calls the first one last
        app.error_handler_spec[None][None].setdefault(RateLimitExceeded, self.respond)  # that of the application stays

    def read_views(self) -> dict[str, ViewMarksByMethod]:
        """Return the marks of all views, by Flask's endpoint. Raises ``ConfigError`` for marks that cannot work."""
        if self._app.config.get(SETTING) is not self._configured:
            raise ConfigError("set after init_app, which reads it. Set it before", f"app.config[{SETTING!r}]")
        views = {endpoint: _marked_view(self._app, endpoint) for endpoint in self._app.view_functions}
        routes = routes_of(self._app, views)
        marked = (marks for view in views.values() for marks in view.all())
        self.limits.adopt(marked, check=lambda rules: check_map(routes, rules, self._has_preprocessors()))
        return views

    def notes(self) -> Iterator[str]:
        """Yield notes on the user, which only Flask-Login, WSGI middleware or the server provides."""
        is_outermost = self._app.wsgi_app == self.run and self.app == MethodType(Flask.wsgi_app, self._app)
        if is_outermost and not hasattr(self._app, "login_manager"):
            yield from warnings_of_user(self.limits, _NO_LOGIN)

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
                    warn_at_start(self.limits)
                    for text in self.notes():
                        warn(text)
                views = self._views
        return views  # type: ignore[return-value] # it was read

    def run(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Run the application, as its ``wsgi_app``. An application in a view may have the same environ."""
        outer = environ.get(_EXCHANGE)
        exchange = environ[_EXCHANGE] = Exchange(start_response)
        try:
            return exchange.run(self.app, environ)
        finally:
            environ[_EXCHANGE] = outer

    def keep_parameters(self, _endpoint: str | None, values: dict[str, Any] | None) -> None:
        """Run when the route is found, before functions that remove a language or a tenant from its parameters."""
        flask.request.environ[_SENT_PARAMS] = dict(values or {})

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
        if environ.get(_EXCHANGE):  # a test may make a context without a call, which has no end
            admission.enter(marks)
        if not verdict.allowed:
            if limits.reject:
                return admission.response_to(verdict)
            raise admission.error(verdict)  # an error handler of the application may respond to it
        if plan.may_delay and verdict.delay:
            time.sleep(verdict.delay)
        return None

    def note_stream(self, response: Response) -> Response:
        """Run after the request. The admission of a stream ends when it is closed, and holds its slots until then."""
        if admission := _admission():
            if admission.ends_with_body:
                response.direct_passthrough = False  # Werkzeug does not close a file that the server sends
            admission.streams = response.is_streamed and not response.direct_passthrough
        return response

    def respond(self, error: RateLimitExceeded) -> Any:
        """Run for a rejection that code of the application has raised, where the application has no handler for it."""
        request = FlaskRequest(flask.request._get_current_object())  # type: ignore[attr-defined]
        # Code may reject a request before ``decide``.
        admission = _admission() or self._admit(self.limits.in_force, request, Plan([]), Verdict())
        admission.verdict = error.verdict
        rejected = admission.http_error(error.verdict, description=getattr(error, "description", None))
        response = self._app.handle_http_exception(rejected)
        return rejected.get_response() if response is rejected else response  # Flask would call it as an application

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
        return finish(*context[:-1], rejection, from_error_handler=True)

    def _admit(self, limits: HttpLimits, request: FlaskRequest, plan: Plan, verdict: Verdict) -> FlaskAdmission:
        environ = request.native
        admission = FlaskAdmission(limits, request, plan, verdict, environ, environ, VERDICT)
        if exchange := environ.get(_EXCHANGE):
            exchange.admission = admission
        g.ratelimit = environ[VERDICT]
        return admission


def _admission() -> FlaskAdmission | None:
    """Return the admission of this call of the application, not of another one with the same environ."""
    exchange: Exchange | None = flask.request.environ.get(_EXCHANGE)
    return exchange.admission if exchange else None  # type: ignore[return-value] # ``_admit`` has set it


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
