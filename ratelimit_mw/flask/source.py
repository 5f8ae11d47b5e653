"""The rules of a Flask application, as the commands of ``cli/`` show them."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from flask import Flask
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from ..asgi.request import ASGIRequest
from ..cli.source import Routed, Source, environ_of
from ..keys.features import UNMATCHED
from ..rules.marks import Destination
from ..wsgi.url_map import route_template, rule_of_path
from .hooks import EXTENSION, FlaskHooks
from .views import marks_for, routes_of


class FlaskSource(Source):
    """The rules of the extension of an application. Raises ``ConfigError`` for a mistake in a decorator."""

    def __init__(self, app: Flask, title: str) -> None:
        hooks: FlaskHooks = app.extensions[EXTENSION]
        self._app, self._hooks, self._views = app, hooks, hooks.views.read()
        http_limiter = hooks.http_limiter
        routes = routes_of(app, self._views)
        super().__init__(title, http_limiter.in_force.settings, http_limiter.limiter.rules, routes, http_limiter)

    def route(self, request: ASGIRequest) -> Routed:
        with suppress(HTTPException):
            environ = environ_of(request, self._app.config["SERVER_NAME"])
            urls: Any = self._app.create_url_adapter(self._app.request_class(environ))  # with subdomains
            try:
                rule, params = urls.match(return_rule=True)
            except MethodNotAllowed as error:
                return self._route_without_view(request, *rule_of_path(urls, error))
            marks = marks_for(self._views[rule.endpoint], request.method, rule)
            return Routed(request.sent_path, Destination(route_template(rule.rule), rule.endpoint, marks), params)
        return Routed(request.sent_path, Destination(UNMATCHED))

    def _route_without_view(self, request: ASGIRequest, rule: Any, params: Any) -> Routed:
        """Return the route of a path that does not take the method. The marks of its view do not apply."""
        there = Destination(UNMATCHED) if rule is None else Destination(route_template(rule.rule), rule.endpoint)
        return Routed(request.sent_path, there, params)

    def notes(self) -> Iterator[str]:
        """Yield notes about the user."""
        yield from self._hooks.views.notes()


def open_source(app: Flask, title: str) -> Source | None:
    """Return the rules of an application; None without the extension."""
    return FlaskSource(app, title) if EXTENSION in app.extensions else None
