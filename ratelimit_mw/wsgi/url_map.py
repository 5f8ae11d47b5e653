"""The routes of a Werkzeug ``Map``: their templates, their views, and the route of each request."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from werkzeug.exceptions import HTTPException
from werkzeug.routing import Map, Rule

from ..http.route_checks import check_parameters, check_routes
from ..http.views import ViewMarksByMethod
from ..keys.features import UNMATCHED
from ..rules.describe import Route
from ..rules.marks import Destination, ViewMarks, destination
from ..rules.match import METHODS
from ..rules.paths import deepen
from .request import WSGIRequest

# As werkzeug.routing reads a rule: <name>, <converter:name>, <converter(arguments):name>.
_PARAMETER: Final = re.compile(r"<(?:[a-zA-Z_]\w*(?:\(.*?\))?:)?([a-zA-Z_]\w*)>", re.ASCII)
_NO_ROUTE: Final = Destination(UNMATCHED)


@lru_cache(10_000)
def route_template(rule: str) -> str:
    """Return the template of a URL rule, without converters.

    >>> route_template("/items/<int:id>/<any(small, large):size>")
    '/items/{id}/{size}'
    """
    return _PARAMETER.sub(r"{\1}", rule)


def routes_of(url_map: Map, marks_of: Callable[[Rule, str], ViewMarks | None]) -> Iterator[Route]:
    """Yield the routes of a map whose rules have marks for their methods."""
    for rule in url_map.iter_rules():
        methods = sorted(rule.methods or METHODS)
        by_method = {method: marks for method in methods if (marks := marks_of(rule, method)) is not None}
        if by_method:
            template = route_template(rule.rule)
            deep = {name for name, converter in rule._converters.items() if not converter.part_isolating}
            yield Route(template, by_method, rule.arguments, name_of(rule.endpoint), deepen(template, deep))


def name_of(endpoint: Any) -> str:
    """Return the name of an endpoint for ``match.view``: itself, or that of the function that it is."""
    return endpoint if isinstance(endpoint, str) else getattr(endpoint, "__name__", str(endpoint))


class MapRoutes:
    """The routes of a map. ``views`` are the views of its endpoints. An endpoint may be a view itself."""

    def __init__(self, url_map: Map, views: Mapping[str, Any]) -> None:
        self._map = url_map
        endpoints = {rule.endpoint for rule in url_map.iter_rules()}
        self._views = {endpoint: ViewMarksByMethod(views.get(endpoint, endpoint)) for endpoint in endpoints}

    def adopt(self, limits: Any) -> None:
        """Add the limits of all views. Raises ``ConfigError`` for rules that no route can match."""
        limits.adopt(marks for view in self._views.values() for marks in view.all())
        routes = self.all()
        check_parameters(routes, limits.rules)
        check_routes(routes, limits.rules)

    def all(self) -> list[Route]:
        return list(routes_of(self._map, self._marks_of))

    def find(self, request: WSGIRequest) -> Destination:
        """Return where a request goes. The request then has its endpoint and its path parameters."""
        request.endpoint = UNMATCHED
        with suppress(HTTPException):  # no route, another method, or a redirect
            urls = self._map.bind_to_environ(dict(request.native))
            rule, request.path_params = urls.match(return_rule=True)
            request.endpoint = route_template(rule.rule)
            return destination(request.endpoint, name_of(rule.endpoint), self._marks_of(rule, request.method))
        return _NO_ROUTE

    def _marks_of(self, rule: Rule, method: str) -> ViewMarks:
        return self._views[rule.endpoint].for_method(method)
