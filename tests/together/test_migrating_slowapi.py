"""Each argument on the page of slowapi has a test with two applications, one behind each package."""

from __future__ import annotations

from typing import Any

import pytest
from calls import ask
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from slowapi import Limiter as SlowLimiter
from slowapi import _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded as SlowExceeded
from slowapi.middleware import SlowAPIMiddleware
from slowapi.util import get_remote_address

from ratelimit_mw import ConfigError, Limiter
from ratelimit_mw.fastapi import RateLimit, RateLimitExceeded, RateLimitMiddleware, exempt, limit
from ratelimit_mw.settings import load_settings
from ratelimit_mw.testing import ManualClock

# slowapi calls asyncio.iscoroutinefunction, which Python 3.14 deprecates in favour of inspect.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:'asyncio.iscoroutinefunction':DeprecationWarning")]

NOW = 1_000_000.0


def before(**options: Any) -> tuple[FastAPI, SlowLimiter]:
    """Return an application behind slowapi with its middleware for default limits."""
    app = FastAPI()
    app.state.limiter = SlowLimiter(key_func=get_remote_address, **options)
    app.add_exception_handler(SlowExceeded, _rate_limit_exceeded_handler)  # type: ignore[arg-type]
    app.add_middleware(SlowAPIMiddleware)
    return app, app.state.limiter


def after(*rules: dict[str, Any], lists: Any = None, **options: Any) -> FastAPI:
    """Return an application behind this package with these rules."""
    app = FastAPI()
    settings = load_settings({"rules": list(rules), "lists": lists or {}})
    limiter = Limiter.from_settings(settings, clock=ManualClock(NOW))
    app.add_middleware(RateLimitMiddleware, limiter=limiter, **options)
    return app


def routes(app: FastAPI, **views: Any) -> None:
    """Add views by name. The path of ``home`` is ``/home``."""
    for name, view in views.items():
        app.add_api_route(f"/{name}", view, methods=["GET", "POST"])


def served_requests(app: FastAPI, *requests: str) -> list[bool]:
    """Return which requests were served. A request is ``GET /path NAME=VALUE`` with headers after the path."""
    served = []
    for text in requests:
        method, path, *headers = text.split()
        response = ask(app, path, method, headers=dict(part.split("=") for part in headers))
        assert response.status_code in (200, 404, 429)
        served.append(response.status_code != 429)
    return served


def same_results(theirs: FastAPI, ours: FastAPI, *requests: str) -> list[bool]:
    """Return the statuses of both for the same requests, which must be equal."""
    result, expected = served_requests(ours, *requests), served_requests(theirs, *requests)
    assert result == expected
    return result


async def with_request(request: Request) -> str:
    return "hello"


async def other_with_request(request: Request) -> str:
    return "other"


async def hello() -> str:
    return "hello"


async def other() -> str:
    return "other"


def account(request: Any) -> str:
    return request.headers.get("account", "")


def test_application_limits_become_a_rule_without_endpoint() -> None:
    """Limits of the whole application become a rule without ``endpoint`` in its key."""
    theirs, _ = before(application_limits=["3/hour"])
    ours = after({"name": "application", "limits": "3/hour"})
    for app in (theirs, ours):
        routes(app, a=hello, b=other)
    assert same_results(theirs, ours, "GET /a", "GET /b", "GET /a", "GET /b") == [True, True, True, False]


def test_application_limits_apply_to_decorated_views() -> None:
    """slowapi's do not apply to them. Here a decorator adds to the rules of the settings."""
    theirs, limiter = before(application_limits=["1/hour"])
    ours = after({"name": "application", "limits": "1/hour"})
    routes(theirs, home=limiter.limit("5/hour")(with_request))
    routes(ours, home=limit("5/hour")(hello))
    assert served_requests(theirs, *["GET /home"] * 3) == [True, True, True]
    assert served_requests(ours, *["GET /home"] * 3) == [True, False, False]


BY_ACCOUNT = ("GET /home Account=a", "GET /home Account=b", "GET /home Account=a")


def test_key_func_becomes_a_feature() -> None:
    """``key_func`` becomes a built-in feature or a feature function."""
    theirs, limiter = before()
    routes(theirs, home=limiter.limit("1/hour", key_func=account)(with_request))
    for key, features in (("header:account", {}), ("account", {"account": account})):
        ours = after(features=features)
        routes(ours, home=limit("1/hour", key=key)(hello))
        assert served_requests(ours, *BY_ACCOUNT) == [True, True, False]
    assert served_requests(theirs, *BY_ACCOUNT) == [True, True, False]


def test_the_url_key_style_becomes_path_in_the_key() -> None:
    """A count per URL, the default of slowapi, becomes ``path`` in the key."""
    for style, key, served in (("url", ["path", "ip"], True), ("endpoint", ["ip"], False)):
        theirs, limiter = before(key_style=style)
        ours = after()
        theirs.add_api_route("/items/{number}", limiter.limit("1/hour")(with_request))
        ours.add_api_route("/items/{number}", limit("1/hour", key=key)(hello))
        assert same_results(theirs, ours, "GET /items/1", "GET /items/2", "GET /items/1") == [True, served, False]


def test_methods_become_a_match_or_a_part_of_the_key() -> None:
    """``methods`` becomes a match on methods, and ``per_method`` the method in the key."""
    theirs, limiter = before()
    ours = after()
    routes(theirs, each=limiter.limit("1/hour", per_method=True)(with_request))
    routes(theirs, some=limiter.limit("1/hour", methods=["POST"])(other_with_request))
    routes(
        ours, each=limit("1/hour", key=["method", "ip"])(hello), some=limit("1/hour", match={"methods": "POST"})(other)
    )
    assert same_results(theirs, ours, "GET /each", "POST /each", "GET /each") == [True, True, False]
    assert same_results(theirs, ours, "GET /some", "POST /some", "GET /some", "POST /some") == [True, True, True, False]


def test_a_limit_function_becomes_a_table() -> None:
    """A function of the key becomes a table by that feature."""

    def of_key(key: str) -> str:
        return "2/hour" if key == "pro" else "1/hour"

    def key(request: Request) -> str:
        return account(request) or "free"

    theirs, limiter = before()
    routes(theirs, home=limiter.limit(of_key, key_func=key)(with_request))
    ours = after(features={"account": key})
    routes(ours, home=limit("1/hour", key="account", per_key={"pro": "2/hour"})(hello))
    served = same_results(theirs, ours, *["GET /home Account=pro"] * 3, *["GET /home"] * 2)
    assert served == [True, True, False, True, False]


def test_cost_and_exempt_functions_become_cost_and_match() -> None:
    """``cost`` stays a function of the request, and ``exempt_when`` becomes a match on a feature."""

    def cost(request: Any) -> int:
        return int(request.headers.get("cost", "1"))

    def inside(request: Any) -> bool:
        return account(request) == "inside"

    theirs, limiter = before()
    routes(theirs, home=limiter.limit("5/hour", cost=cost, exempt_when=inside)(with_request))
    ours = after(features={"inside": lambda request: str(inside(request))})
    routes(ours, home=limit("5/hour", cost=cost, match={"inside": "False"})(hello))
    requests = ["GET /home Cost=9 Account=inside", "GET /home Cost=3", "GET /home Cost=2", "GET /home"]
    assert same_results(theirs, ours, *requests) == [True, True, True, False]


def test_a_shared_limit_has_one_count() -> None:
    """One ``limit`` object, and one ``RateLimit`` object, have one count everywhere."""
    theirs, limiter = before()
    ours, dependent = after(), after()
    shared, ours_shared, depends = limiter.shared_limit("2/hour", scope="both"), limit("2/hour"), RateLimit("2/hour")
    routes(theirs, a=shared(with_request), b=shared(other_with_request))
    routes(ours, a=ours_shared(hello), b=ours_shared(other))
    dependent.add_api_route("/a", hello, dependencies=[Depends(depends)])
    dependent.add_api_route("/b", other, dependencies=[Depends(depends)])
    for app in (ours, dependent):
        assert same_results(theirs, app, "GET /a", "GET /b", "GET /a") == [True, True, False]
        limiter.reset()


def test_default_limits_apply_behind_routers_and_mounts() -> None:
    """slowapi's middleware finds only the application's own routes. Here all routes are known."""
    ours = after({"name": "default", "limits": "1/hour", "key": ["endpoint", "ip"]})
    router, mounted = APIRouter(), FastAPI()
    for routes_of in (router, mounted):
        routes_of.add_api_route("/items", hello)
    ours.include_router(router, prefix="/api")
    ours.mount("/more", mounted)
    assert served_requests(ours, *["GET /api/items"] * 2, *["GET /more/items"] * 2) == [True, False] * 2


def test_the_response_to_a_rejected_request() -> None:
    """The body is problem+json unless ``RateLimitExceeded`` has a handler, which can read the same values."""
    theirs, limiter = before()
    ours = after()
    routes(theirs, home=limiter.limit("1/hour")(with_request))
    routes(ours, home=limit("1/hour")(hello))

    def exceeded(request: Request, error: Any) -> Response:
        rejecting = error.verdict.rejected_by[0].quota
        return PlainTextResponse(f"no more than {rejecting}", 429)

    assert served_requests(theirs, "GET /home", "GET /home") == [True, False]
    assert ask(theirs, "/home").json() == {"error": "Rate limit exceeded: 1 per 1 hour"}
    assert served_requests(ours, "GET /home", "GET /home") == [True, False]
    assert ask(ours, "/home").headers["content-type"] == "application/problem+json"
    ours = after()
    routes(ours, home=limit("1/hour")(hello))
    ours.add_exception_handler(RateLimitExceeded, exceeded)
    assert [ask(ours, "/home").text for _ in range(2)] == ['"hello"', "no more than 1/hour"]


def test_headers_need_no_response_parameter() -> None:
    """Enabled headers required a response parameter in the view. Here the view needs none."""
    theirs, limiter = before(headers_enabled=True)

    @limiter.limit("3/hour")
    async def view(request: Request, response: Response) -> str:
        return "hello"

    ours = after(reset="epoch", headers=["x-ratelimit"])
    routes(theirs, home=view)
    routes(ours, home=limit("3/hour")(hello))
    fields = [dict(ask(app, "/home").headers) for app in (theirs, ours)]
    for name in ("x-ratelimit-limit", "x-ratelimit-remaining"):
        assert fields[0][name] == fields[1][name]
    assert all(float(field["x-ratelimit-reset"]) > NOW for field in fields)
    assert ["retry-after" in field for field in fields] == [True, False]


def test_a_misspelt_limit_stops_the_application() -> None:
    """There the error was logged and the view had no limit. Here the application does not start."""
    theirs, limiter = before()
    routes(theirs, home=limiter.limit("1/our")(with_request))
    assert served_requests(theirs, *["GET /home"] * 3) == [True] * 3
    with pytest.raises(ConfigError, match="cannot parse quota '1/our'"):
        limit("1/our")(hello)


def test_an_exempt_view_stays_exempt() -> None:
    """``@limiter.exempt`` becomes ``@exempt``, with names for some rules only."""
    theirs, limiter = before(default_limits=["1/hour"])
    ours = after(
        {"name": "default", "limits": "1/hour", "key": ["endpoint", "ip"]}, {"name": "application", "limits": "5/hour"}
    )
    routes(theirs, free=limiter.exempt(hello), home=other)
    routes(ours, free=exempt(hello), home=other, some=exempt("default")(hello))
    assert same_results(theirs, ours, *["GET /free"] * 3, *["GET /home"] * 2) == [True] * 4 + [False]
    assert served_requests(ours, *["GET /some"] * 5) == [True] * 4 + [False]
