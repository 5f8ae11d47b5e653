"""The requests to one Flask application: decided before each view, inside a WSGI layer that owns the response."""

import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from types import MethodType
from typing import Any, Final

import flask
from flask import Flask, Response, current_app, g, has_request_context
from flask.globals import request_ctx
from werkzeug.exceptions import HTTPException, MethodNotAllowed, default_exceptions

from ..decision import RateLimitExceeded, Verdict, rejection_of
from ..errors import ConfigError
from ..http.body import Body
from ..http.limits import HttpLimiter, HttpLimits
from ..http.rejection import Rejection
from ..http.request import Request
from ..http.routes import Route
from ..http.warnings import warn, warn_at_start, warnings_of_user
from ..rules.marks import NO_ROUTE, set_admission
from ..rules.plan import Plan
from ..wsgi.body import read_body
from ..wsgi.exchange import Exchange, WSGIAdmission, WSGIRequest, decide_request, remote_user
from ..wsgi.url_map import rule_of_path
from .routes import FlaskRoutes

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
_BYPASSED: Final = (
    "this request came by the wsgi_app from before RateLimiter(app), which other code has kept, as Connexion does."
    " Leave RateLimiter out, and wrap the outermost application in ratelimit_mw.asgi.RateLimitMiddleware"
    " or ratelimit_mw.wsgi.RateLimitMiddleware"
)
_FIRST_SHORT: Final = 300
"""From this status on, responses hold no slots while they are sent."""


class FlaskRequest(WSGIRequest):
    """A request over Flask's own, which is ``framework_request``."""

    is_late = True  # functions of the application may run before ``decide``

    def __init__(self, request: flask.Request) -> None:
        self.native, self.to = request.environ, NO_ROUTE
        self.framework_request = request
        rule: Any = request.url_rule
        self._params: Mapping[str, Any] = request.view_args or {}
        if isinstance(error := request.routing_exception, MethodNotAllowed):
            rule, self._params = _rule_without_view(request, error)
        self.rule = rule

    @cached_property
    def path_params(self) -> Mapping[str, object]:  # type: ignore[override]
        """The parameters that arrived, and those that functions of the application have added since.

        Functions may also have removed parameters, replaced them by objects, or merged their spellings.
        """
        sent = self.native.get(_SENT_PARAMS, {})
        now = self._params.items()
        return {**sent, **{name: value for name, value in now if name not in sent or type(value) is type(sent[name])}}

    @cached_property
    def parsed_body(self) -> Body | None:
        """The form, once Flask has parsed it."""
        cached = vars(self.framework_request)
        if not (cached.get("form") or cached.get("files")):
            return None
        return Body.from_form(self.framework_request.form.items(multi=True), self.framework_request.files)

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


class Rejected(HTTPException, RateLimitExceeded):
    """A rejection as an error of Werkzeug. ``respond`` builds the response when no error handler takes the error."""

    def __init__(self, verdict: Verdict, respond: Callable[[Verdict], Response]) -> None:
        RateLimitExceeded.__init__(self, verdict)
        self.description = self.describe(verdict)
        self.response = self.retry_after = None  # Werkzeug reads both. The layer adds the header
        self._respond = respond

    def get_response(self, *_: Any, **__: Any) -> Response:
        return self._respond(self.verdict)


_ERRORS: Final[dict[int, type[Rejected]]] = {
    status: type(default_exceptions[status].__name__, (Rejected, default_exceptions[status]), {})
    for status in (429, 403, 503)
}
"""The errors by status, which error handlers for the status receive."""


class FlaskAdmission(WSGIAdmission):
    """Shows all decisions in ``flask.g.ratelimit``. Its rejections are errors of Werkzeug."""

    verdict_key = "ratelimit"
    streams = False
    """Whether the response is a stream, and not a text or a file that the server sends."""

    def build_current_request(self) -> FlaskRequest:
        request = FlaskRequest(self.request.framework_request)
        request.to = self.request.to
        return request

    def waits_for(self, body: object) -> bool:
        # Werkzeug's errors and redirects are streamed too. They are short, and test clients do not close them.
        is_short = (self.status or 0) >= _FIRST_SHORT
        return self.streams and not is_short and super().waits_for(body)

    def error(self, verdict: Verdict) -> RateLimitExceeded:
        error = _ERRORS[verdict.status](verdict, self.response_to)
        if self.limits.custom_rejection:
            error.code = None  # your function responds, and no error handler
        return error

    def response_to(self, verdict: Verdict) -> Response:
        """Return the response to a rejection: that of your function, else that of the package."""
        self.verdict, custom = verdict, self.limits.custom_rejection
        response: Any = custom and custom(self.request.framework_request, verdict)
        if response is None:
            response = self.rejection().response
        if isinstance(response, Rejection):
            return current_app.response_class(response.body, response.status, response.headers)
        return current_app.make_response(response)


def keep_parameters(_endpoint: str | None, values: dict[str, Any] | None) -> None:
    """Run when the route is found, before functions that remove a language or a tenant from its parameters."""
    flask.request.environ[_SENT_PARAMS] = dict(values or {})


class FlaskHooks:
    """Decides the requests to one application, and responds to rejections. Its routes are read at the first request."""

    def __init__(self, app: Flask, http_limiter: HttpLimiter) -> None:
        self._flask_app = app
        self.app = app.wsgi_app
        self.http_limiter = http_limiter
        self.limiter = http_limiter.limiter
        self.routes = FlaskRoutes(http_limiter, app, keep_parameters)
        app.wsgi_app = self  # type: ignore[method-assign]
        app.handle_exception = partial(self.handle_exception, app.handle_exception)  # type: ignore[method-assign]
        app.url_value_preprocessors[None].insert(0, keep_parameters)
        app.before_request(self.decide)
        app.after_request_funcs[None].insert(0, self.note_stream)  # Flask calls the first one last
        app.error_handler_spec[None][None].setdefault(RateLimitExceeded, self.respond)  # that of the application stays

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Run the application, as its ``wsgi_app``. An application in a view may have the same environ."""
        outer = environ.get(_EXCHANGE)
        exchange = environ[_EXCHANGE] = Exchange(start_response)
        try:
            return exchange.run(self.app, environ)
        finally:
            environ[_EXCHANGE] = outer

    def __getattr__(self, name: str) -> Any:
        # Code of the application finds the attributes of its own layers on its wsgi_app.
        return getattr(vars(self).get("app"), name)

    def notes(self) -> Iterator[str]:
        """Yield notes on the user, which only Flask-Login, WSGI middleware or the server provides."""
        app = self._flask_app
        is_outermost = app.wsgi_app is self and self.app == MethodType(Flask.wsgi_app, app)
        if is_outermost and not hasattr(app, "login_manager"):
            yield from warnings_of_user(self.http_limiter, _NO_LOGIN)

    def decide(self) -> Any:
        """Run before the request. None lets it continue."""
        request = self._request()
        limits, plan, verdict = decide_request(self.http_limiter, request)
        admission = self._admit(limits, request, plan, verdict)
        if request.native.get(_EXCHANGE):  # a test may make a context without a call, which has no end
            set_admission(admission)
        if not verdict.allowed:
            if self._may_handle_errors() and not limits.custom_rejection:
                raise admission.error(verdict)
            return admission.response_to(verdict)
        if plan.may_delay and verdict.delay:
            time.sleep(verdict.delay)
        return None

    def _may_handle_errors(self) -> bool:
        """Return whether the application may respond to a rejection, by an error handler or by a method of its own."""
        app = self._flask_app
        methods = app.handle_user_exception, app.handle_http_exception
        if methods != (MethodType(Flask.handle_user_exception, app), MethodType(Flask.handle_http_exception, app)):
            return True
        by_status = [each for kinds in app.error_handler_spec.values() for each in kinds.values()]
        return [handler for handlers in by_status for handler in handlers.values()] != [self.respond]

    def note_stream(self, response: Response) -> Response:
        """Run after the request. The admission of a stream ends when it is closed, and holds its slots until then."""
        exchange: Any = flask.request.environ.get(_EXCHANGE)
        if exchange is None:
            raise ConfigError(_BYPASSED)
        if admission := exchange.admission:
            if admission.ends_with_body:
                response.direct_passthrough = False  # Werkzeug does not close a file that the server sends
            admission.streams = response.is_streamed and not response.direct_passthrough
        return response

    def respond(self, error: RateLimitExceeded) -> Any:
        """Run for a rejection that no error handler of the application takes, or that its code has raised."""
        if isinstance(error, Rejected):
            return error.get_response()
        # Code may reject a request before ``decide``.
        admission = _admission() or self._admit(self.http_limiter.in_force, self._request(), Plan([]), Verdict())
        admission.verdict = error.verdict
        return self._flask_app.handle_user_exception(admission.error(error.verdict))

    def handle_exception(self, make_error: Callable[..., Response], *context: Any) -> Response:
        """Run for an error that an error handler has raised, or a function before or after the request.

        ``make_error`` is Flask's own method, which makes a 500 of it. The error is the last argument.
        """
        if (rejection := rejection_of(context[-1])) is None:
            if admission := _admission():
                admission.note_error(context[-1])
            return make_error(*context)
        app: Any = self._flask_app
        try:
            response = app.handle_user_exception(*context[:-1], rejection)
        except Exception as failure:  # of an error handler
            return make_error(*context[:-1], failure)
        return app.finalize_request(*context[:-1], response, from_error_handler=True)  # type: ignore[no-any-return]

    def _request(self) -> FlaskRequest:
        """Return the current request, with the route that it goes to."""
        request = FlaskRequest(flask.request._get_current_object())  # type: ignore[attr-defined]
        sent = request.framework_request
        method = None if sent.url_rule is None else sent.method
        route = self.routes.by_rule.get(id(request.rule)) or self._read_route(request.rule)
        request.to = route.destinations.get(method) or route.destination(method)
        return request

    def _read_route(self, rule: Any) -> Route:
        """Read all routes, and return that of a rule that was not known: at the first request."""
        route = self.routes.route_of(rule)
        self._prefer_handlers()
        warn_at_start(self.http_limiter)
        for text in self.notes():
            warn(text, "no-user")
        return route

    def _prefer_handlers(self) -> None:
        """Let a handler for ``RateLimitExceeded`` take rejections, before one for the status, which Flask prefers."""
        for handlers in self._flask_app.error_handler_spec.values():
            handler = handlers[None].get(RateLimitExceeded, self.respond)
            if handler != self.respond:
                for status, error in _ERRORS.items():
                    handlers[status][error] = handler

    def _admit(self, limits: HttpLimits, request: FlaskRequest, plan: Plan, verdict: Verdict) -> FlaskAdmission:
        environ = request.native
        admission = FlaskAdmission(limits, request, plan, verdict, environ, vars(g))
        environ[WSGIAdmission.verdict_key] = admission.verdict  # for WSGI applications around this one
        if exchange := environ.get(_EXCHANGE):
            exchange.admission = admission
        return admission


def _admission() -> FlaskAdmission | None:
    """Return the admission of this call of the application, not of another one with the same environ."""
    exchange: Exchange | None = flask.request.environ.get(_EXCHANGE)
    return exchange.admission if exchange else None  # type: ignore[return-value] # ``_admit`` has set it
