"""Each argument on the page of Flask-Limiter has a test with two applications, one behind each package."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Blueprint, Flask, Response, g, request
from flask_calls import still
from flask_limiter import ExemptionScope
from flask_limiter import Limiter as FlaskLimiter
from flask_limiter.util import get_remote_address

from ratelimit_mw import Limiter, RateLimitExceeded, Rule
from ratelimit_mw.flask import RateLimiter, exempt, limit
from ratelimit_mw.testing import ManualClock

pytestmark = pytest.mark.slow

NOW = 1_000_000.0


def before(**options: Any) -> tuple[Flask, FlaskLimiter]:
    """Return an application behind Flask-Limiter."""
    app = Flask("before")
    return app, FlaskLimiter(get_remote_address, app=app, storage_uri="memory://", **options)


def after(*rules: dict[str, Any], **options: Any) -> Flask:
    """Return an application behind this package with these rules."""
    app = Flask("after")
    lists = options.pop("lists", {})
    RateLimiter(app, limiter=still({"rules": list(rules), "lists": lists}), **options)
    return app


def hello(**_: Any) -> str:
    return "hello"


def other(**_: Any) -> str:
    """A function with another name, because Flask-Limiter gives functions of one name the limits of all."""
    return "other"


def routes(app: Flask, **views: Any) -> None:
    """Add views by name. The path of ``home`` is ``/home``."""
    for name, view in views.items():
        app.add_url_rule(f"/{name}", name, view, methods=["GET", "POST"])


def served_requests(app: Flask, *requests: str) -> list[bool]:
    """Return which requests were served. A request is ``GET /path NAME=VALUE`` with headers after the path."""
    served = []
    for text in requests:
        method, path, *headers = text.split()
        response = app.test_client().open(path, method=method, headers=[part.split("=") for part in headers])
        assert response.status_code in (200, 401, 429)
        served.append(response.status_code != 429)
    return served


def same_results(theirs: Flask, ours: Flask, *requests: str) -> list[bool]:
    """Return the statuses of both for the same requests, which must be equal."""
    result, expected = served_requests(ours, *requests), served_requests(theirs, *requests)
    assert result == expected
    return result


def test_default_limits_per_method_become_a_method_in_the_key() -> None:
    """``default_limits_per_method`` becomes the method in the key."""
    theirs, _ = before(default_limits=["1/hour"], default_limits_per_method=True)
    ours = after({"name": "default", "limits": "1/hour", "key": ["endpoint", "method", "ip"]})
    for app in (theirs, ours):
        routes(app, home=hello)
    assert same_results(theirs, ours, "GET /home", "POST /home", "GET /home", "POST /home") == [
        True,
        True,
        False,
        False,
    ]


def test_per_method_and_methods_become_key_and_match() -> None:
    """``per_method`` becomes the method in the key, and ``methods`` a match on methods."""
    theirs, limiter = before()
    ours = after()
    routes(theirs, each=limiter.limit("1/hour", per_method=True)(hello))
    routes(theirs, some=limiter.limit("1/hour", methods=["POST"])(other))
    routes(ours, each=limit("1/hour", key=["method", "ip"])(hello))
    routes(ours, some=limit("1/hour", match={"methods": ["POST"]})(other))
    assert same_results(theirs, ours, "GET /each", "POST /each", "GET /each") == [True, True, False]
    assert same_results(theirs, ours, "GET /some", "POST /some", "GET /some", "POST /some") == [True, True, True, False]


BY_ACCOUNT = ("GET /home Account=a", "GET /home Account=b", "GET /home Account=a")


def test_key_func_becomes_a_feature() -> None:
    """``key_func`` becomes a feature function or a built-in feature."""

    def account() -> str:
        return request.headers.get("Account", "")

    theirs, limiter = before()
    routes(theirs, home=limiter.limit("1/hour", key_func=account)(hello))
    for key, features in (("header:account", {}), ("account", {"account": lambda request: request.headers["Account"]})):
        ours = after(features=features)
        routes(ours, home=limit("1/hour", key=key)(hello))
        assert served_requests(ours, *BY_ACCOUNT) == [True, True, False]
    assert served_requests(theirs, *BY_ACCOUNT) == [True, True, False]


def test_an_empty_key_skips_the_limit() -> None:
    """Both packages skip the limit. Here a missing feature does so, and there the log has a line."""
    theirs, limiter = before()
    ours = after()
    routes(theirs, home=limiter.limit("1/hour", key_func=lambda: request.headers.get("Account", ""))(hello))
    routes(ours, home=limit("1/hour", key="header:account")(hello))
    assert same_results(theirs, ours, "GET /home", "GET /home") == [True, True]


def test_a_limit_function_becomes_a_plan() -> None:
    """A function for the limit becomes a function for the plan and a table of plans."""

    def plan() -> str:
        return "pro" if request.headers.get("Account") == "a" else "free"

    theirs, limiter = before()
    dynamic = limiter.limit(lambda: {"pro": "2/hour", "free": "1/hour"}[plan()], key_func=plan)
    routes(theirs, home=dynamic(hello))
    ours = after(features={"plan": lambda request: plan()})
    routes(ours, home=limit("1/hour", key="plan", per={"plan": {"pro": "2/hour"}})(hello))
    served = same_results(theirs, ours, *["GET /home Account=a"] * 3, *["GET /home"] * 2)
    assert served == [True, True, False, True, False]


def test_exemption_functions_become_a_match_or_an_allow_list() -> None:
    """``exempt_when`` becomes a match on a feature, and ``request_filter`` an entry on the allow list."""

    def inside() -> bool:
        return request.headers.get("Inside") == "yes"

    theirs, limiter = before(application_limits=["2/hour"])
    limiter.request_filter(lambda: request.headers.get("Account") == "monitoring")
    routes(theirs, home=limiter.limit("1/hour", exempt_when=inside)(hello))
    ours = after(
        {"name": "application", "limits": "2/hour"},
        lists={"allow": {"header:account": ["monitoring"]}},
        features={"inside": lambda request: str(inside())},
    )
    routes(ours, home=limit("1/hour", match={"inside": "False"})(hello))
    requests = ["GET /home Account=monitoring"] * 3 + ["GET /home Inside=yes", "GET /home", "GET /home"]
    assert same_results(theirs, ours, *requests) == [True] * 5 + [False]


def test_a_cost_stays_a_number_or_a_function() -> None:
    """A cost is a number or a function: there without arguments, here of the request."""
    theirs, limiter = before()
    ours = after()
    routes(theirs, home=limiter.limit("10/hour", cost=lambda: int(request.args["n"]))(hello))
    routes(ours, home=limit("10/hour", cost=lambda request: int(request.args["n"]))(hello))
    assert same_results(theirs, ours, "GET /home?n=6", "GET /home?n=4", "GET /home?n=1") == [True, True, False]


def test_outcomes_other_than_a_status() -> None:
    """``deduct_when`` by anything but a status becomes a cost that the view settles."""

    def counted() -> bool:
        return "counted" in request.args

    def view() -> str:
        g.ratelimit.settle(1 if counted() else 0)
        return "hello"

    theirs, limiter = before()
    ours = after()
    routes(theirs, home=limiter.limit("1/hour", deduct_when=lambda response: counted())(hello))
    routes(ours, home=limit("1/hour")(view))
    requests = ["GET /home", "GET /home", "GET /home?counted", "GET /home"]
    assert same_results(theirs, ours, *requests) == [True, True, True, False]


def test_exempt_flags_become_exempt_with_names() -> None:
    """``exempt`` with its flags covers the default limits or those of the application."""
    theirs, limiter = before(default_limits=["1/hour"], application_limits=["3/hour"])
    ours = after(
        {"name": "default", "limits": "1/hour", "key": ["endpoint", "ip"]},
        {"name": "application", "limits": "3/hour"},
    )
    scopes = {"one": ExemptionScope.DEFAULT, "other": ExemptionScope.APPLICATION}
    for name, view in {"one": lambda: "one", "other": lambda: "other", "none": lambda: "none"}.items():
        view.__qualname__ = name
        routes(theirs, **{name: limiter.exempt(flags=scopes[name])(view) if name in scopes else view})
    routes(ours, one=exempt("default")(lambda: ""), other=exempt("application")(lambda: ""), none=lambda: "")
    requests = ["GET /one", "GET /one", "GET /other", "GET /other", "GET /none", "GET /one"]
    assert same_results(theirs, ours, *requests) == [True, True, True, False, True, False]


def test_a_blueprint_limit_counts_each_view() -> None:
    """A blueprint's limit counts each view separately, so its key has ``endpoint``. An exempt one stays exempt."""
    theirs, limiter = before(default_limits=["1/hour"])
    ours = after({"name": "default", "limits": "1/hour", "key": ["endpoint", "ip"]})
    for app in (theirs, ours):
        api, free = Blueprint("api", "api", url_prefix="/api"), Blueprint("free", "free", url_prefix="/free")
        for blueprint in (api, free):
            for name in ("a", "b"):
                blueprint.add_url_rule(f"/{name}", name, hello)
        if app is theirs:
            limiter.limit("2/hour")(api)
            limiter.exempt(free)
        else:
            limit("2/hour", key=["endpoint", "ip"])(exempt("default")(api))
            exempt(free)
        app.register_blueprint(api)
        app.register_blueprint(free)
    assert same_results(theirs, ours, "GET /api/a", "GET /api/a", "GET /api/a", "GET /api/b") == [
        True,
        True,
        False,
        True,
    ]
    assert same_results(theirs, ours, *["GET /free/a"] * 3) == [True] * 3


def test_a_limit_inside_a_view() -> None:
    """``with limiter.limit(...)`` becomes ``hit`` of your own limiter."""
    theirs, limiter = before()
    own = Limiter([Rule(name="part", limits="1/hour")], clock=ManualClock(NOW))

    def view_of_theirs() -> str:
        with limiter.limit("1/hour"):
            return "hello"

    def view_of_ours() -> Any:
        try:
            own.hit({"ip": request.remote_addr}).raise_for_limit()
        except RateLimitExceeded:
            return "later", 429
        return "hello"

    ours = after()
    routes(theirs, home=view_of_theirs)
    routes(ours, home=view_of_ours)
    assert same_results(theirs, ours, "GET /home", "GET /home") == [True, False]


def test_each_strategy_becomes_an_algorithm() -> None:
    """Each strategy becomes an algorithm, and each rejects the third request of two an hour."""
    strategies = {
        "fixed-window": "fixed-window",
        "moving-window": "sliding-window-log",
        "sliding-window-counter": "sliding-window-counter",
    }
    for strategy, algorithm in strategies.items():
        theirs, limiter = before(strategy=strategy)
        ours = after()
        routes(theirs, home=limiter.limit("2/hour")(hello))
        routes(ours, home=limit("2/hour", algorithm=algorithm)(hello))
        assert same_results(theirs, ours, *["GET /home"] * 3) == [True, True, False]


def test_the_response_of_a_callback() -> None:
    """``on_breach`` becomes ``rejection``, which receives the request and the verdict instead of the limit."""
    theirs, limiter = before(on_breach=lambda limit: Response(f"{limit.limit.amount}, no more", 429))
    ours = after(
        rejection=lambda request, verdict: Response(f"{verdict.rejected_by[0].quota.amount}, no more", 429),
    )
    routes(theirs, home=limiter.limit("1/hour")(hello))
    routes(ours, home=limit("1/hour")(hello))
    texts = [[app.test_client().get("/home").text for _ in range(2)] for app in (theirs, ours)]
    assert texts[0] == texts[1] == ["hello", "1, no more"]


def test_an_error_message_becomes_an_error_handler() -> None:
    """``error_message`` becomes an error handler, which knows the rejecting rule."""
    theirs, limiter = before()
    ours = after()
    messages = {"home": "one an hour"}
    routes(theirs, home=limiter.limit("1/hour", error_message="one an hour")(hello))
    routes(ours, home=limit("1/hour", name="home")(hello))
    theirs.register_error_handler(429, lambda error: (error.description, 429))
    ours.register_error_handler(429, lambda error: (messages[error.verdict.rejected_by[0].rule], 429))
    texts = [[app.test_client().get("/home").text for _ in range(2)] for app in (theirs, ours)]
    assert texts[0] == texts[1] == ["hello", "one an hour"]


def test_the_limit_that_a_view_reads() -> None:
    """``limiter.current_limit`` becomes ``g.ratelimit`` with the limit and the remaining requests."""
    theirs, limiter = before()

    @limiter.limit("3/hour")
    def view_of_theirs() -> str:
        current = limiter.current_limit
        assert current is not None
        return f"{current.remaining} of {current.limit.amount}"

    @limit("3/hour")
    def view_of_ours() -> str:
        current = g.ratelimit.decisions[0]
        return f"{current.remaining} of {current.limit}"

    ours = after()
    routes(theirs, home=view_of_theirs)
    routes(ours, home=view_of_ours)
    texts = [[app.test_client().get("/home").text for _ in range(2)] for app in (theirs, ours)]
    assert texts[0] == texts[1] == ["2 of 3", "1 of 3"]


def test_header_names_stay_the_same() -> None:
    """Enabled headers had these names. The reset as a date is a setting."""
    theirs, limiter = before(headers_enabled=True)
    ours = after(reset="epoch", headers=["x-ratelimit"])
    routes(theirs, home=limiter.limit("3/hour")(hello))
    routes(ours, home=limit("3/hour")(hello))
    fields = [
        {name.lower(): value for name, value in app.test_client().get("/home").headers if "ratelimit" in name.lower()}
        for app in (theirs, ours)
    ]
    assert fields[0].keys() == fields[1].keys()
    for name in ("x-ratelimit-limit", "x-ratelimit-remaining"):
        assert fields[0][name] == fields[1][name]
    assert float(fields[0]["x-ratelimit-reset"]) > NOW
    assert float(fields[1]["x-ratelimit-reset"]) > NOW


def test_a_misspelt_limit_stops_the_application(caplog: pytest.LogCaptureFixture) -> None:
    """There the error was logged and the view had no limit. Here the application does not start."""
    theirs, limiter = before()
    routes(theirs, home=limiter.limit("1/our")(hello))
    assert served_requests(theirs, *["GET /home"] * 3) == [True] * 3
    assert "failed to load ratelimit" in caplog.text
    with pytest.raises(ValueError, match="cannot parse quota '1/our'"):
        limit("1/our")(lambda: "hello")


def test_static_files_are_exempt() -> None:
    """Both skip the view ``static``. Here a rule that names its path still applies."""
    for rules, expected in (
        ([{"limits": "1/hour"}], [404, 404, 200, 429]),
        ([{"limits": "1/hour", "match": {"path": "/static/**"}}], [404, 429, 200, 200]),
    ):
        app = Flask("static", static_folder=".", static_url_path="/static")
        RateLimiter(app, limiter=still({"rules": rules}))
        routes(app, home=hello)
        client = app.test_client()
        codes = []
        for path in ("/static/no.txt", "/static/no.txt", "/home", "/home"):
            with client.get(path) as response:
                codes.append(response.status_code)
        assert codes == expected


def test_functions_with_the_same_name_have_their_own_limits() -> None:
    """There each of two lambdas has the limits of both. Here a decorator limits only its own function."""
    theirs, limiter = before()
    ours = after()
    for app, decorate in ((theirs, limiter.limit), (ours, limit)):
        routes(app, a=decorate("1/hour")(lambda: "a"), b=decorate("2/hour")(lambda: "b"))
    assert served_requests(theirs, "GET /b", "GET /b", "GET /b") == [True, False, False]
    assert served_requests(ours, "GET /b", "GET /b", "GET /b") == [True, True, False]


def test_an_allow_list_may_use_a_function() -> None:
    """``request_filter`` with any condition becomes a feature function on the allow list."""
    ours = after(
        {"limits": "1/hour"},
        lists={"allow": {"inside": ["yes"]}},
        features={"inside": lambda request: "yes" if "inside" in request.args else "no"},
    )
    routes(ours, home=hello)
    assert served_requests(ours, "GET /home?inside", "GET /home", "GET /home", "GET /home?inside") == [
        True,
        True,
        False,
        True,
    ]


def test_preflights_are_not_limited() -> None:
    """Default limits counted ``OPTIONS``. Here only a rule that names it does. Both packages count ``HEAD``."""
    theirs, _ = before(default_limits=["2/hour"])
    ours = after({"name": "default", "limits": "2/hour", "key": ["endpoint", "ip"]})
    for app in (theirs, ours):
        routes(app, home=hello, head=other)
    assert served_requests(theirs, *["OPTIONS /home"] * 3) == [True, True, False]
    assert served_requests(ours, *["OPTIONS /home"] * 3) == [True, True, True]
    assert same_results(theirs, ours, "HEAD /head", "GET /head", "HEAD /head") == [True, True, False]
