"""The routes of a Werkzeug ``Map``: their templates, the marks on their views, and the route of each request."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.routing import Map, MapAdapter, Rule

from ..errors import ConfigError
from ..http.limits import HttpLimiter
from ..http.routes import Route, marks_by_method
from ..rules.marks import NO_ROUTE, Destination, ViewMarks
from ..rules.match import METHODS
from ..rules.paths import deepen


def template_of(rule: Rule) -> str:
    """Return the template of a rule that a map has: "/items/{id}" for "/items/<int:id>"."""
    parts = rule._trace[rule._trace.index((False, "|")) + 1 :]  # those before are of the host
    return "".join(f"{{{text}}}" if is_parameter else text for is_parameter, text in parts)


def rule_of_path(urls: MapAdapter, error: MethodNotAllowed) -> tuple[Rule | None, Mapping[str, Any]]:
    """Return the rule of a path that does not take the method of the request, and the parameters in the path."""
    with suppress(HTTPException):
        return urls.match(method=min(error.valid_methods or (), default="GET"), return_rule=True)
    return None, {}


class MapRoutes:
    """The routes of a map. They are read again when a rule of the map is not known."""

    server_name: str | None = None
    """The name that subdomains are in front of, where the application has one."""

    def __init__(self, http_limiter: HttpLimiter, url_map: Map) -> None:
        if not isinstance(url_map, Map):
            raise ConfigError(f"expected a Map of werkzeug.routing; got {url_map!r}", "url_map")
        self.http_limiter, self._map = http_limiter, url_map
        self.by_rule: dict[int, Route] = {}
        """The routes by the identity of the rule. That of None is for paths without a rule."""

    def adopt(self) -> list[Route]:
        """Add the limits of all views, and return all routes. Raises ``ConfigError`` for limits that cannot apply."""
        rules = list(self._map.iter_rules())
        for rule in rules if self.server_name is None and not self._map.host_matching else ():
            if rule.subdomain:  # it would never be found
                fix = "Leave url_map out, and name paths and hosts in your rules"
                raise ConfigError(f"the rule {rule.rule!r} has the subdomain {rule.subdomain!r}. {fix}", "url_map")
        routes = [self._read_route(rule) for rule in rules]
        self.http_limiter.adopt(routes)
        self.by_rule = dict(zip(map(id, (*rules, None)), (*routes, Route(NO_ROUTE)), strict=True))
        return routes

    def find(self, environ: dict[str, Any]) -> tuple[Destination, Mapping[str, Any]]:
        """Return where a request goes, and the parameters in its path."""
        rule: Rule | None = None
        params: Mapping[str, Any] = {}
        method: str | None = environ["REQUEST_METHOD"].upper()
        with suppress(HTTPException):  # no route, or a redirect
            urls = self._bind(environ)
            try:
                rule, params = urls.match(return_rule=True)
            except MethodNotAllowed as error:
                rule, params = rule_of_path(urls, error)
                method = None
        if id(rule) not in self.by_rule:
            self.adopt()
        return self.by_rule[id(rule)].destination(method), params

    def _bind(self, environ: dict[str, Any]) -> MapAdapter:
        return self._map.bind_to_environ(environ)

    def _read_route(self, rule: Rule) -> Route:
        template = template_of(rule)
        deep = {name for name, converter in rule._converters.items() if not converter.part_isolating}
        return Route(
            Destination(template, _name_of(rule.endpoint)),
            self._read_view(rule.endpoint),
            sorted(rule.methods or METHODS),
            self._parameters_of(rule),
            deepen(template, deep),
            rule.endpoint,
            getattr(rule, "provide_automatic_options", False),  # of Flask
        )

    def _read_view(self, endpoint: Any) -> dict[str, ViewMarks]:
        """Return the marks of the view of an endpoint, which may be the view itself."""
        return marks_by_method(endpoint)

    def _parameters_of(self, rule: Rule) -> Collection[str] | None:
        """Return the names of the parameters of a rule; None where functions of the application may add others."""
        return rule.arguments


def _name_of(endpoint: Any) -> str:
    """Return the name of an endpoint for ``match.view``: itself, or that of the function that it is."""
    return endpoint if isinstance(endpoint, str) else getattr(endpoint, "__name__", str(endpoint))
