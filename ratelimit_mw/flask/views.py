"""The views of one Flask application: their marks, and where each request goes."""

import itertools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MethodType
from typing import Any, Final

from flask import Flask

from ..errors import ConfigError
from ..http.limits import HttpLimiter
from ..http.routes import Route, ViewMarksByMethod
from ..http.warnings import warn, warn_at_start, warnings_of_user
from ..rules.marks import Destination, ViewMarks, marked_form, marks_of, readers
from ..rules.match import METHODS
from ..settings.framework import SETTING
from ..wsgi.url_map import check_map
from ..wsgi.url_map import routes_of as routes_of_map

_NO_LOGIN: Final = (
    "the application has no LoginManager of Flask-Login, and most servers set no REMOTE_USER. Add one before the first"
    " request"
)
_UNMARKED: Final = ViewMarks()


class FlaskViews:
    """The marks of the views, read at the first request, when all views are registered."""

    def __init__(self, app: Flask, http_limiter: HttpLimiter, hooks: Any) -> None:
        self._app = app
        self._http_limiter = http_limiter
        self._hooks = hooks
        self._configured = app.config.get(SETTING)
        self._by_endpoint: dict[str, ViewMarksByMethod] = {}
        self._reading = threading.Lock()
        self.count = -1
        """The number of views that were read; -1 to read them at the next request."""
        self.destinations: dict[tuple[str | None, str | None, str], Destination] = {}
        """Where requests go: by template, by Flask's endpoint, which a 405 does not have, and by method."""
        readers.add(self)

    def find(self, key: tuple[str | None, str | None, str], rule: Any) -> Destination:
        """Return where a request goes. The marks of a view do not apply to a method that it does not have."""
        if self.count != len(self._app.view_functions):
            with self._reading:
                self._read_again()
        template, endpoint, method = key
        view = self._by_endpoint.get(endpoint or "")
        marks = _UNMARKED if view is None else marks_for(view, method, rule)
        to = Destination(template, "" if rule is None else rule.endpoint, marks)
        if method in METHODS:  # clients choose others
            to = self.destinations.setdefault(key, to)
        return to

    def _read_again(self) -> None:
        """Read the views if there are others since the last request."""
        count = len(self._app.view_functions)
        if self.count != count:
            self._by_endpoint, self.destinations = self.read(), {}
            warn_at_start(self._http_limiter)
            for text in self.notes():
                warn(text)
            self.count = count

    def read(self) -> dict[str, ViewMarksByMethod]:
        """Return the marks of all views, by Flask's endpoint. Raises ``ConfigError`` for marks that cannot work."""
        if self._app.config.get(SETTING) is not self._configured:
            raise ConfigError("set after init_app, which reads it. Set it before", f"app.config[{SETTING!r}]")
        views = {endpoint: _marked_view(self._app, endpoint) for endpoint in self._app.view_functions}
        routes = routes_of(self._app, views)
        marked = (marks for view in views.values() for marks in view.all())
        self._http_limiter.adopt(marked, check=lambda limits: check_map(routes, limits, self._has_preprocessors()))
        return views

    def notes(self) -> Iterator[str]:
        """Yield notes on the user, which only Flask-Login, WSGI middleware or the server provides."""
        app, hooks = self._app, self._hooks
        is_outermost = app.wsgi_app == hooks.run and hooks.app == MethodType(Flask.wsgi_app, app)
        if is_outermost and not hasattr(app, "login_manager"):
            yield from warnings_of_user(self._http_limiter, _NO_LOGIN)

    def forget_marks(self) -> None:
        """Read the views again at the next request, because a blueprint has another mark."""
        self.count = -1

    def _has_preprocessors(self) -> bool:
        every = self._app.url_value_preprocessors.values()
        return any(function != self._hooks.keep_parameters for functions in every for function in functions)


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
