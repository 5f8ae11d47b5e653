"""Rate limiting for FastAPI: the middleware, the decorators for views, and the dependency ``RateLimit``.

app.add_middleware(RateLimitMiddleware, settings="ratelimit.toml")
"""

# Annotations are evaluated here: older versions of FastAPI cannot read those of RateLimit as text.

import sys
from collections.abc import Mapping
from inspect import Parameter, Signature
from typing import Any, Final, Unpack

from .asgi.dependants import DependencyLimit, check_provided
from .asgi.request import ASGIAdmission
from .decision import RateLimitExceeded, Verdict
from .errors import ConfigError, MissingExtraError, MissingMiddlewareError, error_of, error_path
from .http.in_view import LimitUsage
from .http.limits import ADMISSION
from .keys.features import checked_name
from .rules.decorators import call_site, make_mark
from .rules.options import Limits, RuleOptions
from .starlette import RateLimitMiddleware, check, exempt, limit, messages, usage, verdict
from .testmode import testmode

try:
    from fastapi.params import Depends
    from fastapi.requests import HTTPConnection
except ImportError:
    raise MissingExtraError("ratelimit_mw.fastapi", "fastapi") from None

__all__ = [
    "RateLimit",
    "RateLimitExceeded",
    "RateLimitMiddleware",
    "Usage",
    "check",
    "exempt",
    "limit",
    "messages",
    "usage",
    "verdict",
]


_ANNOTATION: Final = "<string>"
"""The file of the code that Python compiles for an annotation that is kept as text."""


class RateLimit(DependencyLimit, Depends):
    """Limit a route, a router or an application with a dependency.

    The limit is decided with all other limits of the request, before any dependency is called. With ``features`` it is
    decided when these dependencies have run. A rejection then refunds nothing that was consumed before. The value of
    the dependency is the verdict. Routes with the same object share its counts, unless its key has ``endpoint``.

    Args:
        limits: Limits such as "5/minute", a list of them, or a function of the values of the key.
        features: The dependencies that provide features of the key, such as ``{"user": current_user}``.
        **options: The fields of ``Rule``.

    Raises:
        ConfigError: The rule cannot work, or a feature is not used.

    Example:
        @app.get("/report", dependencies=[RateLimit("5/minute")])
        async def report(): ...
    """

    use_cache = True
    scope = None
    __eq__, __hash__, __repr__ = object.__eq__, object.__hash__, object.__repr__  # those of Depends compare fields

    def __init__(
        self, limits: Limits, *, features: Mapping[str, Any] | None = None, **options: Unpack[RuleOptions]
    ) -> None:
        caller = sys._getframe(1)
        where = f"{caller.f_globals.get('__name__', '')}.RateLimit"
        place = f"RateLimit at {call_site()}"
        if caller.f_code.co_filename == _ANNOTATION:  # each route would have a count of its own
            message = "FastAPI evaluates an annotation that is kept as text for each route"
            raise ConfigError(f'{message}. Write per_minute = RateLimit("5/minute"), and Depends(per_minute)', of=place)
        with error_of(place):
            dependencies = _dependencies(features or {})
            self.mark = make_mark(limits, options, where, place, dependencies)
        if "key" in options:  # else it may be a default of the settings, which are not known yet
            check_provided(self.mark, self.mark.rule)
        self._names = {f"feature_{i}": name for i, name in enumerate(dependencies)}
        parameters = [Parameter("connection", Parameter.POSITIONAL_OR_KEYWORD, annotation=HTTPConnection)]
        for parameter, name in self._names.items():
            parameters.append(Parameter(parameter, Parameter.KEYWORD_ONLY, default=dependencies[name]))
        self.__signature__ = Signature(parameters)

    @property
    def dependency(self) -> Any:
        """The dependency of ``Depends``: this object, with or without ``Depends`` around it."""
        return self

    async def __call__(self, connection: HTTPConnection, **values: Any) -> Verdict:
        innermost: ASGIAdmission | None = connection.scope.get(ADMISSION)
        admission: Any
        for admission in innermost.chain() if innermost is not None else ():
            if self.mark in admission.limits.rules.marks:  # else another middleware decides it
                return await self._decide(admission, {self._names[name]: value for name, value in values.items()})
        if not testmode.off:
            raise MissingMiddlewareError(self.mark.view)
        return Verdict()

    async def _decide(self, admission: ASGIAdmission, provided: Mapping[str, Any]) -> Verdict:
        """Return the verdict on this limit, which is decided once. A rejection refunds nothing, and is raised."""
        request, decided = admission.request, admission.dependencies
        marks = request.match.marks
        if decided is None:
            decided = admission.dependencies = dict.fromkeys(() if marks is None else marks.marks, admission.verdict)
        if self.mark not in decided:  # FastAPI calls a dependency again with use_cache=False
            rules = admission.limits.rules
            plan = rules.plan_of([self.mark], request.method, request.host, marks, admission.lists)
            decided[self.mark] = verdict = await admission.adecide(plan, provided)
            if not verdict.allowed:
                raise admission.error(verdict)
        return decided[self.mark]


def _dependencies(features: Any) -> dict[str, Depends]:
    if not isinstance(features, Mapping):
        raise ConfigError(f'expected {{"user": current_user}}, dependencies by feature; got {features!r}', "features")
    dependencies = {}
    for name, call in features.items():
        with error_path(f"features[{name!r}]"):
            checked_name(name)
            if not isinstance(call, Depends) and not callable(call):
                raise ConfigError(f"expected a dependency: a function, or Depends(function); got {call!r}")
            dependencies[name] = call if isinstance(call, Depends) else Depends(call)
    return dependencies


class Usage:
    """A dependency whose value is how much is left of each rule for the client. It consumes nothing.

    Args:
        *rules: The names of rules, those of decorators too. Without any: all rules that have a key in the request.

    Example:
        @app.get("/me/usage")
        async def my_usage(usage: Annotated[dict, Depends(Usage("tokens", "requests"))]):
            return usage
    """

    def __init__(self, *rules: str) -> None:
        self._rules = rules

    async def __call__(self, connection: HTTPConnection) -> dict[str, LimitUsage]:
        return await usage(connection, *self._rules)
