"""Errors cross the border of a process, for example from a ``ProcessPoolExecutor`` or from Celery."""

import pickle
from typing import Any

import starlette.exceptions
from tables import each

from ratelimit_mw import ConfigError, Limiter, RateLimitExceeded, Rule, Verdict
from ratelimit_mw.algorithms import names
from ratelimit_mw.asgi.rejections import http_error
from ratelimit_mw.decision import combine_verdicts
from ratelimit_mw.errors import FeatureTypeError, MissingExtraError, MissingMiddlewareError, RateLimitError, StateError


def rejection(**options: Any) -> Verdict:
    limiter = Limiter([Rule(name="login", limits="1/minute", **options)])
    verdicts = [limiter.hit({"ip": "192.0.2.7"}) for _ in range(3)]
    limiter.close()
    assert not verdicts[-1]
    return verdicts[-1]


def again(error: RateLimitError) -> Any:
    return pickle.loads(pickle.dumps(error))


@each(
    "error",
    [
        MissingExtraError("the store redis://", "redis"),
        MissingMiddlewareError("login()", "is limited"),
        ConfigError("expected a number", "rules[1].cost", "a.toml"),
        FeatureTypeError("a list has no stable text", "user"),
        StateError("damaged", ["1|login"]),
    ],
)
def test_an_error_is_the_same_after_pickling(error: RateLimitError) -> None:
    """Its type, its text and its attributes stay."""
    found = again(error)
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))
    assert getattr(found, "msg", None) == getattr(error, "msg", None)  # of an ImportError


@each("algorithm", names())
@each("options", [{}, {"ban": {"after": 1, "within": "1m", "for": "1h"}}])
def test_a_rejection_has_its_decisions_after_pickling(algorithm: str, options: dict[str, Any]) -> None:
    """With every algorithm, and in a ban."""
    verdict = rejection(algorithm=algorithm, **options)
    found = again(RateLimitExceeded(verdict))
    assert (type(found), str(found)) == (RateLimitExceeded, str(RateLimitExceeded(verdict)))
    assert repr(found.verdict) == repr(verdict)
    assert (found.verdict.status, found.verdict.retry_after) == (429, verdict.retry_after)
    assert [each.client for each in found.verdict.rejected_by] == ["ip=192.0.2.7"]


def test_a_rejection_of_several_verdicts_is_one_after_pickling() -> None:
    """It has the decisions of all of them."""
    both = combine_verdicts([rejection()], [rejection()])
    assert repr(again(RateLimitExceeded(both)).verdict) == repr(both)


def test_a_rejection_of_a_framework_is_one_after_pickling() -> None:
    """It is still an ``HTTPException``."""
    error = http_error(rejection())
    found = again(error)
    assert (type(found), str(found), found.status_code) == (type(error), str(error), 429)
    assert isinstance(found, starlette.exceptions.HTTPException)
