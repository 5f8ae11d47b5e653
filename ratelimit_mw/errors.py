"""Every error this package raises on purpose. Knows nothing of the rest of the package but their names.

Wrong input is a ``ConfigError`` and says where, what was found and what was expected.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .decision import Verdict

__all__ = [
    "ConfigError",
    "MissingExtraError",
    "MissingMiddlewareError",
    "RateLimitError",
    "RateLimitExceeded",
    "StoreError",
    "placed",
]


class RateLimitError(Exception):
    """The base of all errors of this package."""


class ConfigError(RateLimitError, ValueError):
    """A quota, rule, key, option or setting that cannot mean anything. Raised when it is built.

    ``path`` is the place inside what was being built, outermost first, ``of`` the name of that:

    >>> str(ConfigError("expected a whole number", "cost").within("rules[1]"))
    'rules[1].cost: expected a whole number'
    """

    def __init__(self, message: str, path: str = "", of: str = "") -> None:
        super().__init__(message, path, of)
        self.message = message
        self.path = path
        self.of = of

    def within(self, place: str) -> ConfigError:
        """The same error seen from one level further out; a place in a file says more than a name did."""
        joint = "" if not self.path or self.path.startswith("[") else "."
        return ConfigError(self.message, f"{place}{joint}{self.path}")

    def __str__(self) -> str:
        place = ", ".join(part for part in (self.of, self.path) if part)
        return f"{place}: {self.message}" if place else self.message


@contextmanager
def placed(place: str) -> Iterator[None]:
    """What goes wrong in here is a mistake at ``place``."""
    try:
        yield
    except ConfigError as error:
        raise (error.within(place) if place else error) from None


class MissingMiddlewareError(RateLimitError, RuntimeError):
    """A limited view ran in a request whose limits nobody decided."""

    def __init__(self, view: str) -> None:
        super().__init__(
            f"{view} is limited by a decorator, but nobody decided its limits in this request:"
            " add RateLimitMiddleware (Flask: RateLimiter) to the application that this view's route belongs to."
            " In a test that calls the view by itself: ratelimit_mw.testing.limits_off()"
        )


class MissingExtraError(RateLimitError, ImportError):
    """An optional library is not installed. The message is the line that installs it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} needs an extra that is not installed: pip install "ratelimit-mw[{extra}]"')


class StoreError(RateLimitError):
    """A store could not answer: unreachable, over its time budget, or broken."""


class RateLimitExceeded(RateLimitError):  # noqa: N818 - the name users of other limiters look for
    """A request was rejected; ``verdict`` says by which limits and for how long."""

    def __init__(self, verdict: Verdict) -> None:
        rejecting = ", ".join(f"{d.rule} ({d.quota})" for d in verdict.rejected_by) or "a rule"
        wait = "it can never fit" if verdict.retry_after is None else f"retry after {verdict.retry_after:g} s"
        super().__init__("rejected by a deny list" if verdict.denied else f"rejected by {rejecting}: {wait}")
        self.verdict = verdict
