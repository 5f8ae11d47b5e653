"""Rate limiting in FastAPI: the middleware, the decorators for views, and ``RateLimit``, which is a dependency.

app.add_middleware(RateLimitMiddleware, settings="ratelimit.toml")
"""

# Annotations are not kept as text here: older FastAPI could not read those of ``RateLimit``.

import sys
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import Any

from .asgi.exchange import exchange_of
from .asgi.middleware import RateLimitMiddleware
from .asgi.routes.match import DependencyLimit
from .decision import Verdict
from .errors import ConfigError, MissingExtraError, MissingMiddlewareError, RateLimitExceeded, placed
from .keys.features import checked_name
from .rules.callables import caller
from .rules.marks import exempt, limit, make_mark, messages
from .testmode import testmode

try:
    from fastapi.params import Depends
    from fastapi.requests import HTTPConnection
except ImportError:
    raise MissingExtraError("ratelimit_mw.fastapi", "fastapi") from None

__all__ = ["RateLimit", "RateLimitExceeded", "RateLimitMiddleware", "exempt", "limit", "messages"]


class RateLimit(DependencyLimit):
    """A limit as a dependency, of a route, a router or the application: ``Depends(RateLimit("5/minute"))``.

    The options are those of ``limit``. It is decided with all other limits of the request, before any dependency is
    called. Where its key needs what only a dependency knows, name that dependency by the feature it gives, as in
    ``features={"user": current_user}``: then it is decided when that is known, and when it rejects, everything that
    the request has consumed is given back. Its value is the verdict. Routes with the same object share its counts,
    unless its key has ``endpoint`` in it. Raises ``ConfigError`` where it cannot mean anything.
    """

    def __init__(self, limits: Any, *, features: Mapping[str, Any] | None = None, **options: Any) -> None:
        where = f"{sys._getframe(1).f_globals.get('__name__', '')}.RateLimit"
        try:
            mark = make_mark(limits, options, where)
            given = _dependencies(features or {}, mark.rule.needs)
        except ConfigError as error:
            raise ConfigError(error.message, error.path, f"RateLimit at {caller()}") from None
        super().__init__(mark, {name: depends.dependency for name, depends in given.items()})
        self._names = {f"feature_{i}": name for i, name in enumerate(given)}
        parameters = [Parameter("connection", Parameter.POSITIONAL_OR_KEYWORD, annotation=HTTPConnection)]
        for parameter, name in self._names.items():
            parameters.append(Parameter(parameter, Parameter.KEYWORD_ONLY, default=given[name]))
        self.__signature__ = Signature(parameters)

    async def __call__(self, connection: HTTPConnection, **values: Any) -> Verdict:
        exchange = exchange_of(connection.scope)
        if exchange is not None:
            return await exchange.meet(self, {self._names[name]: value for name, value in values.items()})
        if not testmode.off:
            raise MissingMiddlewareError(self.mark.view)
        return Verdict()


def _dependencies(features: Any, needs: tuple[str, ...]) -> dict[str, Depends]:
    if not isinstance(features, Mapping):
        raise ConfigError(f'expected {{"user": current_user}}, dependencies by feature; got {features!r}', "features")
    found = {}
    for name, call in features.items():
        with placed(f"features[{name!r}]"):
            found[name] = _dependency(checked_name(name), call, needs)
    return found


def _dependency(name: str, call: Callable[..., Any] | Depends, needs: tuple[str, ...]) -> Depends:
    if name not in needs:
        raise ConfigError(f"nothing looks at it: the key, match and per of this limit need {', '.join(needs)}")
    if not isinstance(call, Depends) and not callable(call):
        raise ConfigError(f"expected a dependency: a function, or Depends(function); got {call!r}")
    return call if isinstance(call, Depends) else Depends(call)
