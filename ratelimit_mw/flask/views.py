"""The views of one Flask application, read at its first request, when all are registered."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from types import MethodType
from typing import Any, Final

from flask import Flask
from werkzeug.routing import MapAdapter

from ..errors import ConfigError
from ..http.limits import HttpLimiter
from ..http.routes import Route, marked_view, marks_by_method
from ..http.warnings import warn, warn_at_start, warnings_of_user
from ..rules.marks import ViewMarks, marks_of, readers
from ..settings import SETTING
from ..wsgi.url_map import MapViews

_NO_LOGIN: Final = (
    "the application has no LoginManager of Flask-Login, and most servers set no REMOTE_USER. Add one before the first"
    " request"
)


class FlaskViews(MapViews):
    """The views of an application. ``hooks`` are those that decide its requests."""

    def __init__(self, app: Flask, http_limiter: HttpLimiter, hooks: Any) -> None:
        super().__init__(http_limiter, app.url_map)
        self._app = app
        self._hooks = hooks
        self._configured = app.config.get(SETTING)
        readers.add(self)

    def bind(self, environ: dict[str, Any]) -> MapAdapter:
        request: Any = self._app.request_class(environ)
        return self._app.create_url_adapter(request)  # type: ignore[return-value]

    def read(self) -> list[Route]:
        if self._app.config.get(SETTING) is not self._configured:
            raise ConfigError("set after init_app, which reads it. Set it before", f"app.config[{SETTING!r}]")
        self._registered = set(map(id, self._app.view_functions.values()))
        self.server_name = self._app.config["SERVER_NAME"] or ""  # Flask itself finds the subdomain of a request
        return super().read()

    def read_again(self) -> None:
        super().read_again()
        warn_at_start(self.http_limiter)
        for text in self.notes():
            warn(text, "no-user")

    def notes(self) -> Iterator[str]:
        """Yield notes on the user, which only Flask-Login, WSGI middleware or the server provides."""
        app, hooks = self._app, self._hooks
        is_outermost = app.wsgi_app == hooks.run and hooks.app == MethodType(Flask.wsgi_app, app)
        if is_outermost and not hasattr(app, "login_manager"):
            yield from warnings_of_user(self.http_limiter, _NO_LOGIN)

    def forget_marks(self) -> None:
        """Read the views again at the next request, because a blueprint has another mark."""
        self.destinations = {}

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

    def _adds_parameters(self) -> bool:
        every = self._app.url_value_preprocessors.values()
        return any(function != self._hooks.keep_parameters for functions in every for function in functions)


def _serves_files(view: Any, endpoint: str) -> bool:
    """Return whether it is the view that Flask adds for the static files of an application or a blueprint."""
    return endpoint.rpartition(".")[2] == "static" and str(getattr(view, "__module__", "")).partition(".")[0] == "flask"
