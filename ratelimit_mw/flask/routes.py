"""The routes of one Flask application, read at its first request, when all views are registered."""

import itertools
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from flask import Flask
from werkzeug.routing import MapAdapter, Rule

from ..errors import ConfigError
from ..http.limits import HttpLimiter
from ..http.routes import Route, marked_view, marks_by_method, registered_forms
from ..rules.marks import ViewMarks, mark_readers, marks_of
from ..runtime.forksafe import create_lock
from ..settings import SETTING
from ..wsgi.url_map import MapRoutes


class FlaskRoutes(MapRoutes):
    """The routes of an application. Its functions of URL values, but ``own``, may add parameters to them."""

    def __init__(self, http_limiter: HttpLimiter, app: Flask, own: Callable[..., None]) -> None:
        super().__init__(http_limiter, app.url_map)
        self._app = app
        self._own = own
        self._configured = app.config.get(SETTING)
        self._lock = create_lock(self, "_lock", threading.RLock)
        mark_readers.add(self)

    def adopt(self) -> list[Route]:
        if self._app.config.get(SETTING) is not self._configured:
            raise ConfigError("set after init_app, which reads it. Set it before", f"app.config[{SETTING!r}]")
        self._registered = registered_forms(self._app.view_functions.values())
        self.server_name = self._app.config["SERVER_NAME"] or ""  # Flask itself finds the subdomain of a request
        return super().adopt()

    def forget_marks(self) -> None:
        """Read the views again at the next request, because a blueprint has another mark."""
        with self._lock:
            self.by_rule = {}

    def route_of(self, rule: Rule | None) -> Route:
        """Return the route of a rule. One that is not known is read, with the marks that views have until then."""
        with self._lock:
            if id(rule) not in self.by_rule:
                self.adopt()
            return self.by_rule[id(rule)]

    def _bind(self, environ: dict[str, Any]) -> MapAdapter:
        request: Any = self._app.request_class(environ)
        return self._app.create_url_adapter(request)  # type: ignore[return-value]

    def _read_view(self, endpoint: str) -> dict[str, ViewMarks]:
        """Return the marks of the view of Flask's ``endpoint``, with those of its blueprints and the application."""
        app, view = self._app, self._app.view_functions.get(endpoint)
        view = marked_view(view, self._registered)
        outer = itertools.accumulate(endpoint.split(".")[:-1], "{}.{}".format)
        blueprints = [app.blueprints[name] for name in outer if name in app.blueprints]
        marked = marks_by_method(view, [app, *blueprints])
        if marks_of(view) == ViewMarks() and _serves_files(view, endpoint):
            marked[""] = replace(marked[""], is_static=True)
        return marked

    def _parameters_of(self, rule: Rule) -> Collection[str] | None:
        every = self._app.url_value_preprocessors.values()
        is_fixed = all(function is self._own for functions in every for function in functions)
        return super()._parameters_of(rule) if is_fixed else None


def _serves_files(view: Any, endpoint: str) -> bool:
    """Return whether it is the view that Flask adds for the static files of an application or a blueprint."""
    return endpoint.rpartition(".")[2] == "static" and str(getattr(view, "__module__", "")).partition(".")[0] == "flask"
