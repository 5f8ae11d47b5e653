"""The routes of a Werkzeug ``Map``: their templates, their views, and the route of each request."""

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final

from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.routing import Map, MapAdapter, Rule

from ..errors import ConfigError
from ..forksafe import create_lock
from ..http.limits import HttpLimiter, HttpLimits
from ..http.routes import Route, ViewMarksByMethod, check_parameters, check_routes
from ..keys.features import UNMATCHED
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


def rule_of_path(urls: MapAdapter, error: MethodNotAllowed) -> tuple[Rule | None, Mapping[str, Any]]:
    """Return the rule of a path whose methods are others than that of the request, and the parameters in the path."""
    with suppress(HTTPException):
        return urls.match(method=min(error.valid_methods or (), default="GET"), return_rule=True)
    return None, {}


def name_of(endpoint: Any) -> str:
    """Return the name of an endpoint for ``match.view``: itself, or that of the function that it is."""
    return endpoint if isinstance(endpoint, str) else getattr(endpoint, "__name__", str(endpoint))


class MapRoutes:
    """The routes of a map. ``views`` are the views of its endpoints. An endpoint may be a view itself.

    ``server_name`` is that of ``bind_to_environ``, which finds subdomains by it.
    """

    def __init__(self, limits: HttpLimiter, url_map: Map, views: Mapping[str, Any], server_name: str | None) -> None:
        for name, value, kind in (("url_map", url_map, Map), ("views", views, Mapping)):
            if not isinstance(value, kind):
                expected = "a Map of werkzeug.routing" if kind is Map else "views by endpoint"
                raise ConfigError(f"expected {expected}; got {value!r}", name)
        self._limits = limits
        self._map = url_map
        self._given = views
        self.server_name = server_name
        self._views: dict[Any, ViewMarksByMethod] = {}
        self._adopting = create_lock(self, "_adopting", threading.Lock)

    def adopt(self) -> list[Route]:
        """Add the limits of all views, and return all routes. Raises ``ConfigError`` for limits that cannot apply."""
        with self._adopting:
            rules = list(self._map.iter_rules())
            self._check_subdomains(rules)
            self._check_views({rule.endpoint for rule in rules})
            views = {rule.endpoint: ViewMarksByMethod(self._given.get(rule.endpoint, rule.endpoint)) for rule in rules}
            routes = list(routes_of(self._map, lambda rule, method: views[rule.endpoint].for_method(method)))

            def check(rules: HttpLimits) -> None:
                check_parameters(routes, rules.rules)
                check_routes(routes, rules.rules)

            self._limits.adopt((marks for view in views.values() for marks in view.all()), check=check)
            self._views = views
            return routes

    def _check_subdomains(self, rules: Iterable[Rule]) -> None:
        """Raise ``ConfigError`` for a rule that is never found without the name of the server."""
        for rule in rules if self.server_name is None and not self._map.host_matching else ():
            if rule.subdomain:
                message = f"the rule {rule.rule!r} has the subdomain {rule.subdomain!r}. Pass server_name="
                raise ConfigError(f"{message}, as to bind_to_environ", "url_map")

    def _check_views(self, endpoints: Iterable[Any]) -> None:
        """Raise ``ConfigError`` for a slip in the name of an endpoint. Other views may be those of another map."""
        without_view = [name for name in endpoints if isinstance(name, str) and name not in self._given]
        for name in self._given.keys() - endpoints:
            if close := get_close_matches(str(name), without_view, 1):
                raise ConfigError(f"no rule has the endpoint {name!r}. Did you mean {close[0]!r}?", "views")

    def find(self, request: WSGIRequest) -> Destination:
        """Return where a request goes. The request then has its endpoint and its path parameters."""
        request.endpoint = UNMATCHED
        with suppress(HTTPException):  # no route, or a redirect
            urls = self._map.bind_to_environ(dict(request.native), self.server_name)
            try:
                rule, request.path_params = urls.match(return_rule=True)
            except MethodNotAllowed as error:
                return self._find_without_view(request, urls, error)
            if rule.endpoint not in self._views:  # it was added later
                self.adopt()
            request.endpoint = route_template(rule.rule)
            return destination(request.endpoint, name_of(rule.endpoint), self._marks_of(rule, request.method))
        return _NO_ROUTE

    def _find_without_view(self, request: WSGIRequest, urls: MapAdapter, error: MethodNotAllowed) -> Destination:
        """Return the route of a path that does not take the method. The marks of its view do not apply."""
        rule, request.path_params = rule_of_path(urls, error)
        if rule is None:
            return _NO_ROUTE
        request.endpoint = route_template(rule.rule)
        return destination(request.endpoint, name_of(rule.endpoint))

    def _marks_of(self, rule: Rule, method: str) -> ViewMarks:
        return self._views[rule.endpoint].for_method(method)
