"""The routes of a Werkzeug ``Map``: their templates, their views, and the route of each request."""

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.routing import Map, MapAdapter, Rule

from ..errors import ConfigError
from ..http.limits import HttpLimiter
from ..http.routes import Route, marks_by_method
from ..rules.marks import NO_ROUTE, Destination, ViewMarks
from ..rules.match import METHODS
from ..rules.paths import deepen

# As werkzeug.routing reads a rule: <name>, <converter:name>, <converter(arguments):name>.
_PARAMETER: Final = re.compile(r"<(?:[a-zA-Z_]\w*(?:\(.*?\))?:)?([a-zA-Z_]\w*)>", re.ASCII)


@lru_cache(10_000)
def route_template(rule: str) -> str:
    """Return the template of a URL rule, without converters.

    >>> route_template("/items/<int:id>/<any(small, large):size>")
    '/items/{id}/{size}'
    """
    return _PARAMETER.sub(r"{\1}", rule)


def rule_of_path(urls: MapAdapter, error: MethodNotAllowed) -> tuple[Rule | None, Mapping[str, Any]]:
    """Return the rule of a path whose methods are others than that of the request, and the parameters in the path."""
    with suppress(HTTPException):
        return urls.match(method=min(error.valid_methods or (), default="GET"), return_rule=True)
    return None, {}


class MapViews:
    """The views of a map, and where requests go. They are read again when a rule of the map is not known."""

    server_name: str | None = None
    """The name that subdomains are in front of, where the application has one."""

    def __init__(self, http_limiter: HttpLimiter, url_map: Map) -> None:
        if not isinstance(url_map, Map):
            raise ConfigError(f"expected a Map of werkzeug.routing; got {url_map!r}", "url_map")
        self.http_limiter, self._map = http_limiter, url_map
        self.destinations: dict[tuple[int, str | None], Destination] = {}
        """Where requests go, by the identity of the rule and the method: "" for unusual ones. See ``destination``."""

    def bind(self, environ: dict[str, Any]) -> MapAdapter:
        return self._map.bind_to_environ(environ)

    def read(self) -> list[Route]:
        """Add the limits of all views, and return all routes. Raises ``ConfigError`` for limits that cannot apply."""
        rules = list(self._map.iter_rules())
        for rule in rules if self.server_name is None and not self._map.host_matching else ():
            if rule.subdomain:  # it would never be found
                fix = "Leave url_map out, and name paths and hosts in your rules"
                raise ConfigError(f"the rule {rule.rule!r} has the subdomain {rule.subdomain!r}. {fix}", "url_map")
        views = {endpoint: self._read_view(endpoint) for endpoint in {rule.endpoint: None for rule in rules}}
        by_rule = {id(rule): self._route(rule, views[rule.endpoint]) for rule in rules}
        routes = list(by_rule.values())
        self.http_limiter.adopt(routes)
        by_rule[id(None)] = Route(NO_ROUTE)
        methods = (None, "", *METHODS)
        self.destinations = {
            (rule, each): route.destination(each) for rule, route in by_rule.items() for each in methods
        }
        return routes

    def find(self, environ: dict[str, Any]) -> tuple[Destination, Mapping[str, Any]]:
        """Return where a request goes, and the parameters in its path."""
        with suppress(HTTPException):  # no route, or a redirect
            urls = self.bind(environ)
            try:
                rule, params = urls.match(return_rule=True)
                return self.destination(rule, environ["REQUEST_METHOD"]), params
            except MethodNotAllowed as error:
                there, params = rule_of_path(urls, error)
                return self.destination(there, None), params
        return self.destination(None, None), {}

    def destination(self, rule: Rule | None, method: str | None) -> Destination:
        """Return where a request to a rule goes. The method is None where the rule does not take it.

        The marks of the view do not apply then.
        """
        key = id(rule), method if method is None or method in METHODS else ""  # clients choose others
        if key not in self.destinations:
            self.read_again()
        return self.destinations[key]

    def read_again(self) -> None:
        """Read the views during a request."""
        self.read()

    def _route(self, rule: Rule, view: dict[str, ViewMarks]) -> Route:
        template, methods = route_template(rule.rule), sorted(rule.methods or METHODS)
        deep = {name for name, converter in rule._converters.items() if not converter.part_isolating}
        pattern, to = deepen(template, deep), Destination(template, _name_of(rule.endpoint))
        automatic = getattr(rule, "provide_automatic_options", False)  # of Flask
        parameters = None if self._adds_parameters() else rule.arguments
        return Route(to, view, methods, parameters, pattern, rule.endpoint, automatic)

    def _read_view(self, endpoint: Any) -> dict[str, ViewMarks]:
        """Return the marks of the view of an endpoint, which may be the view itself."""
        return marks_by_method(endpoint)

    def _adds_parameters(self) -> bool:
        """Return whether functions of the application may add parameters to a route."""
        return False


def _name_of(endpoint: Any) -> str:
    """Return the name of an endpoint for ``match.view``: itself, or that of the function that it is."""
    return endpoint if isinstance(endpoint, str) else getattr(endpoint, "__name__", str(endpoint))
