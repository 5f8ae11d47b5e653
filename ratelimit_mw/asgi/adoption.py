"""Takes over the limits of the routes that were read, and checks the rules against them."""

from ..errors import ConfigError, error_path
from ..http.limits import HttpLimiter, HttpLimits
from ..http.routes import check_parameters, check_routes
from ..keys.features import checked_name
from ..keys.parts import part_of
from ..rules.marks import ViewMarks
from ..rules.rule import Rule, with_defaults
from .dependants import DependencyLimit
from .openapi import OpenAPIWithLimits
from .rejections import handle_rejections
from .route_reader import RouteReader


def adopt(http_limiter: HttpLimiter, key: int, reader: RouteReader) -> None:
    """Add the limits of all routes, and describe them in OpenAPI."""
    views = [marks for route in reader.routes for marks in route.views.all()]
    views.append(ViewMarks(tuple(limit.mark for limit in reader.limits)))
    routes = list(reader.describe())

    def check(limits: HttpLimits) -> None:
        for limit in reader.limits:
            check_provided(limit, with_defaults(limit.mark.rule, limits.settings.defaults))
        check_parameters(routes, limits.rules)
        check_routes(routes, limits.rules, limits.http_limiter.functions.may_provide)

    provided = {limit.mark: limit.provides for limit in reader.limits if limit.provides}
    http_limiter.adopt(views, provided, check, key)
    for app in reader.owners:
        handle_rejections(app)
    for app in {id(app): app for app in reader.owners if hasattr(app, "openapi_schema")}.values():
        app.openapi = OpenAPIWithLimits(app, http_limiter, [route for route in reader.routes if route.place.app is app])


def check_provided(limit: DependencyLimit, rule: Rule) -> None:
    """Raise ``ConfigError`` for a feature of a limit that its rule does not use."""
    try:
        for name in limit.provides:
            with error_path(f"features[{name!r}]"):
                if checked_name(name) not in [part_of(each).feature for each in rule.parts]:
                    needs = ", ".join(rule.parts)
                    raise ConfigError(f"the limit does not use it: its key, match, per and cost need {needs}")
    except ConfigError as error:
        raise ConfigError(error.message, error.path, limit.place) from None
