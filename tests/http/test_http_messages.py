"""The whole messages of the middleware, of decorators and of FastAPI's limits. Other tests match place and key word."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from werkzeug.routing import Map
from werkzeug.routing import Rule as URLRule
from werkzeug.test import EnvironBuilder, run_wsgi_app

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.errors import RateLimitError
from ratelimit_mw.wsgi import RateLimitMiddleware, check, limit


def view(*_: Any) -> Iterable[bytes]:
    return [b""]


def middleware(options: dict[str, Any] | None = None, app: Any = view, **settings: Any) -> RateLimitMiddleware:
    """Build the middleware with one rule of these options."""
    rules = [{"name": "api", "limits": "9/minute", **options}] if options else []
    return RateLimitMiddleware(app, settings={"rules": rules, **settings})


def one_request(options: dict[str, Any], app: Any = view) -> None:
    run_wsgi_app(middleware(options, app), EnvironBuilder().get_environ())


def with_a_subdomain() -> None:
    urls = Map([URLRule("/", endpoint=view, subdomain="<tenant>")])
    RateLimitMiddleware(view, limiter=Limiter([]), url_map=urls)


MESSAGES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: middleware({"key": ["view", "ip"]}),
        (
            "rule 'api': key: the views of this application have no names. Write the feature \"path\", or use the"
            " framework's middleware"
        ),
    ),
    (
        lambda: middleware({"match": {"view": "login"}}),
        (
            "rule 'api': match.view: the views of this application have no names. Write match.path, or use the"
            " framework's middleware"
        ),
    ),
    (
        lambda: middleware(lists={"deny": {"view": ["item"]}}),
        "lists: the views of this application have no names. Write path, or use the framework's middleware",
    ),
    (
        lambda: middleware({"key": "usr"}),
        (
            "rule 'api': key: uses the feature 'usr', but nothing provides it. Did you mean 'user'? If not, pass"
            " features={'usr': function_of_the_request} to the middleware"
        ),
    ),
    (
        lambda: middleware({"reserve": {"critical": "50%"}}),
        (
            "rule 'api': reserve: uses the feature 'priority', but nothing provides it. Set priorities.header, or"
            " pass features={'priority': function_of_the_request} to the middleware"
        ),
    ),
    (
        lambda: middleware({"match": {"path": "/"}}, priorities={"header": "x-priority"}),
        "priorities.header: the header is read from trusted proxies only. Set trusted_proxies",
    ),
    (
        lambda: one_request({"key": "user.id"}),
        (
            "rule 'api': key: uses 'user.id', but the built-in feature 'user' is a text. Write 'user', or pass"
            " features={'user': function_of_the_request} to the middleware"
        ),
    ),
    (
        lambda: one_request({"key": "ip"}, lambda environ, _: check(environ, "apy")),
        "check('apy'): unknown rule 'apy'. Did you mean 'api'?",
    ),
    (
        lambda: RateLimitMiddleware(view, rules=[]),  # type: ignore[call-arg]
        'rules: not an argument of the middleware. Pass settings={"rules": ...}',
    ),
    (
        with_a_subdomain,
        (
            "url_map: the rule '/' has the subdomain '<tenant>'. Leave url_map out, and name paths and hosts in your"
            " rules"
        ),
    ),
    (
        lambda: limit("1/s", match={"view": "home"})(view),
        "@limit at LINE: match.view: a decorated view has the view of its route. Remove match.view",
    ),
    (
        lambda: limit("1/s", unrouted=True)(view)(),
        (
            "VIEW is limited by a decorator, but no RateLimitMiddleware handled this request. Add RateLimitMiddleware"
            " (Flask: RateLimiter) to the application that this view's route belongs to. In a test that calls the view"
            " directly, use ratelimit_mw.testing.limits_off()"
        ),
    ),
    (
        lambda: Rule(limits="5/m", match={"user_or_ip": "ann"}),
        "match.user_or_ip: 'user_or_ip' is not a feature. In a key it means 'user|ip'",
    ),
]


@pytest.mark.parametrize(("call", "message"), MESSAGES, ids=[message[:50] for _, message in MESSAGES])
def test_an_error_names_place_problem_and_remedy(call: Callable[[], object], message: str) -> None:
    """It names the place, the problem, and what to write instead."""
    with pytest.raises(RateLimitError) as caught:
        call()
    found = str(caught.value).replace(f"{__name__}.view", "VIEW")
    assert re.sub(rf"{re.escape(__file__)}:\d+", "LINE", found) == message
