"""The routes of a Flask application: their templates, and the marks on their views."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from flask import Flask

from ..http.views import ViewMarksByMethod
from ..rules.describe import Route
from ..rules.marks import ViewMarks, marked_form, marks_of
from ..rules.match import METHODS

# As werkzeug.routing reads a rule: <name>, <converter:name>, <converter(arguments):name>.
_PARAMETER: Final = re.compile(r"<(?:[a-zA-Z_]\w*(?:\(.*?\))?:)?([a-zA-Z_]\w*)>", re.ASCII)


@lru_cache(10_000)
def route_template(rule: str) -> str:
    """Return the template of a URL rule, without converters.

    >>> route_template("/items/<int:id>/<any(small, large):size>")
    '/items/{id}/{size}'
    """
    return _PARAMETER.sub(r"{\1}", rule)


def marked_view(app: Flask, endpoint: str) -> ViewMarksByMethod:
    """Return the marks of the view of Flask's ``endpoint``, with those of its blueprints and the application."""
    view: Any = app.view_functions[endpoint]
    form = marked_form(view)
    if form is not None and marks_of(view) == ViewMarks() and form not in app.view_functions.values():
        view = form  # @limit is above @app.route, which registered the view before it was marked
    outer = itertools.accumulate(endpoint.split(".")[:-1], "{}.{}".format)
    blueprints = [app.blueprints[name] for name in outer if name in app.blueprints]
    return ViewMarksByMethod(view, [app, *blueprints])


def routes_of(app: Flask, views: Mapping[str, ViewMarksByMethod]) -> list[Route]:
    """Return the routes of these views."""
    return [
        Route(
            route_template(rule.rule),
            {method: views[rule.endpoint].for_method(method) for method in sorted(rule.methods or METHODS)},
            rule.arguments,
        )
        for rule in app.url_map.iter_rules()
        if rule.endpoint in views
    ]
