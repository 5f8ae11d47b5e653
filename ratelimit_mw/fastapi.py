"""Rate limiting for FastAPI: the middleware, the decorators for views, and the dependency ``RateLimit``.

app.add_middleware(RateLimitMiddleware, settings="ratelimit.toml")
"""

# Annotations are evaluated here: older versions of FastAPI cannot read those of RateLimit as text.

import sys
from typing import Any, Final, Unpack

from .decision import RateLimitExceeded, Verdict
from .errors import ConfigError, MissingExtraError, error_of
from .http.in_view import LimitUsage
from .rules.decorators import call_site, make_mark
from .rules.marks import ATTRIBUTE, ViewMarks, require_decided
from .rules.options import Limits, RuleOptions
from .starlette import RateLimitMiddleware, check, exempt, limit, messages, usage, verdict

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


class RateLimit(Depends):
    """Limit a route, a router or an application with a dependency.

    The limit is decided with all other limits of the request, before any dependency is called. The value of the
    dependency is the verdict. Routes with the same object share its counts, unless its key has ``endpoint``.

    Args:
        limits: Limits such as "5/minute", a list of them, or a function of the values of the key.
        **options: The fields of ``Rule``.

    Raises:
        ConfigError: The rule cannot work.

    Example:
        @app.get("/report", dependencies=[RateLimit("5/minute")])
        async def report(): ...
    """

    use_cache = True
    scope = None
    __eq__, __hash__, __repr__ = object.__eq__, object.__hash__, object.__repr__  # those of Depends compare fields

    def __init__(self, limits: Limits, **options: Unpack[RuleOptions]) -> None:
        caller = sys._getframe(1)
        where = f"{caller.f_globals.get('__name__', '')}.RateLimit"
        place = f"RateLimit at {call_site()}"
        if caller.f_code.co_filename == _ANNOTATION:  # each route would have a count of its own
            message = "FastAPI evaluates an annotation that is kept as text for each route"
            raise ConfigError(f'{message}. Write per_minute = RateLimit("5/minute"), and Depends(per_minute)', of=place)
        with error_of(place):
            self._mark = make_mark(limits, options, where, place)
        setattr(self, ATTRIBUTE, ViewMarks((self._mark,)))

    @property
    def dependency(self) -> Any:
        """The dependency of ``Depends``: this object, with or without ``Depends`` around it."""
        return self

    async def __call__(self, connection: HTTPConnection) -> Verdict:
        require_decided([self._mark])
        return verdict(connection)


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
