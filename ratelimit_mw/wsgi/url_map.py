"""The routes of a Werkzeug ``Map``: their templates, their views, and the route of each request."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.routing import Map, MapAdapter, Rule

from ..errors import ConfigError
from ..http.limits import HttpLimiter, HttpLimits
from ..http.routes import Route, ViewMarksByMethod, check_parameters, check_routes
from ..keys.features import UNMATCHED
from ..rules.marks import Destination, ViewMarks, destination
from ..rules.match import METHODS
from ..rules.paths import deepen
from .exchange import WSGIRequest

# As werkzeug.routing reads a rule: <name>, <converter:name>, <converter(arguments):name>.
_PARAMETER: Final = re.compile(r"<(?:[a-zA-Z_]\w*(?:\(.*?\))?:)?([a-zA-Z_]\w*)>", re.ASCII)


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


def rule_of_path(urls: MapAdapter, error: MethodNotAllowed) -> tuple[Rule | None, Mapping[str, Any]]:
    """Return the rule of a path whose methods are others than that of the request, and the parameters in the path."""
    with suppress(HTTPException):
        return urls.match(method=min(error.valid_methods or (), default="GET"), return_rule=True)
    return None, {}


def name_of(endpoint: Any) -> str:
    """Return the name of an endpoint for ``match.view``: itself, or that of the function that it is."""
    return endpoint if isinstance(endpoint, str) else getattr(endpoint, "__name__", str(endpoint))


def check_map(routes: list[Route], limits: HttpLimits, may_have_more: bool = False) -> None:
    """Raise ``ConfigError`` for a rule that no route has. Functions of Flask may add parameters to a route."""
    if not may_have_more:
        check_parameters(routes, limits.rules)
    check_routes(routes, limits.rules, limits.functions.may_provide)


class MapRoutes:
    """The routes of a map. ``views`` are the views of its endpoints. An endpoint may be a view itself.

    ``server_name`` is that of ``bind_to_environ``, which finds subdomains by it.
    """

    def __init__(
        self, http_limiter: HttpLimiter, url_map: Map, views: Mapping[str, Any], server_name: str | None
    ) -> None:
        if not isinstance(url_map, Map):
            raise ConfigError(f"expected a Map of werkzeug.routing; got {url_map!r}", "url_map")
        self._http_limiter, self._map, self._given, self.server_name = http_limiter, url_map, views, server_name
        self._views: dict[Any, ViewMarksByMethod] = {}

    def adopt(self) -> list[Route]:
        """Add the limits of all views, and return all routes. Raises ``ConfigError`` for limits that cannot apply."""
        rules = list(self._map.iter_rules())
        for rule in rules if self.server_name is None and not self._map.host_matching else ():
            if rule.subdomain:  # it would never be found
                message = f"the rule {rule.rule!r} has the subdomain {rule.subdomain!r}. Pass server_name="
                raise ConfigError(f"{message}, as to bind_to_environ", "url_map")
        views = {rule.endpoint: ViewMarksByMethod(self._given.get(rule.endpoint, rule.endpoint)) for rule in rules}
        routes = list(routes_of(self._map, lambda rule, method: views[rule.endpoint].for_method(method)))
        marked = (marks for view in views.values() for marks in view.all())
        self._http_limiter.adopt(marked, check=lambda limits: check_map(routes, limits))
        self._views = views
        return routes

    def find(self, request: WSGIRequest) -> Destination:
        """Return where a request goes. The request then has its endpoint and its path parameters."""
        rule: Rule | None = None
        marks: ViewMarks | None = None
        with suppress(HTTPException):  # no route, or a redirect
            urls = self._map.bind_to_environ(dict(request.native), self.server_name)
            try:
                rule, request.path_params = urls.match(return_rule=True)
                if rule.endpoint not in self._views:  # it was added later
                    self.adopt()
                marks = self._views[rule.endpoint].for_method(request.method)
            except MethodNotAllowed as error:  # the marks of its view do not apply
                rule, request.path_params = rule_of_path(urls, error)
        request.endpoint = UNMATCHED if rule is None else route_template(rule.rule)
        to = destination(request.endpoint, "" if rule is None else name_of(rule.endpoint), marks)
        request.view = to.function
        return to
