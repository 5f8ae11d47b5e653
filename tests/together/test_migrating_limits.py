"""Each argument on the pages of Flask-Limiter and slowapi has a test with two applications, one behind each package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flask
import pytest
import slowapi
import slowapi.errors
import slowapi.middleware
import slowapi.util
from calls import ask
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from flask_calls import still
from flask_limiter import ExemptionScope
from flask_limiter import Limiter as FlaskLimiter
from flask_limiter.util import get_remote_address
from tables import each

import ratelimit_mw.fastapi
import ratelimit_mw.flask
from ratelimit_mw import ConfigError, Limiter, RateLimitExceeded, Rule
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.testing import ManualClock

# slowapi calls asyncio.iscoroutinefunction, which Python 3.14 deprecates in favour of inspect.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:'asyncio.iscoroutinefunction':DeprecationWarning")]

NOW = 1_000_000.0
PER_VIEW = ["view", "ip"]
Served = list[bool]


class OfFlask:
    """Flask behind Flask-Limiter, or behind this package."""

    limit = staticmethod(ratelimit_mw.flask.limit)
    exempt = staticmethod(ratelimit_mw.flask.exempt)

    def before(self, **options: Any) -> tuple[Any, Any]:
        app = flask.Flask("before")
        return app, FlaskLimiter(get_remote_address, app=app, storage_uri="memory://", **options)

    def after(self, *rules: dict[str, Any], lists: Any = None, **options: Any) -> Any:
        app = flask.Flask("after")
        settings = {"rules": list(rules), "lists": lists or {}}
        ratelimit_mw.flask.RateLimiter(app, limiter=still(settings), **options)
        return app

    def view(self, name: str = "hello") -> Callable[..., str]:
        """Return a view of this name, because Flask-Limiter gives functions of one name the limits of all."""

        def view(**_: Any) -> str:
            return name

        view.__qualname__ = view.__name__ = name
        return view

    def route(self, app: Any, **views: Any) -> None:
        for name, view in views.items():
            app.add_url_rule(f"/{name}", name, view, methods=["GET", "POST"])

    def ask(self, app: Any, method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], str]:
        with app.test_client().open(path, method=method, headers=headers) as response:
            return response.status_code, {name.lower(): value for name, value in response.headers}, response.text

    def of_request(self, read: Callable[[Any], Any]) -> Callable[[], Any]:
        """Flask-Limiter calls functions without arguments."""
        return lambda: read(flask.request)


class OfFastAPI(OfFlask):
    """FastAPI behind slowapi, or behind this package."""

    limit = staticmethod(ratelimit_mw.fastapi.limit)
    exempt = staticmethod(ratelimit_mw.fastapi.exempt)

    def before(self, **options: Any) -> tuple[Any, Any]:
        app = FastAPI()
        app.state.limiter = slowapi.Limiter(key_func=slowapi.util.get_remote_address, **options)
        handler: Any = slowapi._rate_limit_exceeded_handler
        app.add_exception_handler(slowapi.errors.RateLimitExceeded, handler)
        app.add_middleware(slowapi.middleware.SlowAPIMiddleware)
        return app, app.state.limiter

    def after(self, *rules: dict[str, Any], lists: Any = None, **options: Any) -> Any:
        app = FastAPI()
        limiter = still({"rules": list(rules), "lists": lists or {}})
        app.add_middleware(ratelimit_mw.fastapi.RateLimitMiddleware, limiter=limiter, **options)
        return app

    def view(self, name: str = "hello") -> Any:
        async def view(request: Request, response: Response) -> str:
            return name

        view.__qualname__ = view.__name__ = name
        return view

    def route(self, app: Any, **views: Any) -> None:
        for name, view in views.items():
            app.add_api_route(f"/{name}", view, methods=["GET", "POST"])

    def ask(self, app: Any, method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], str]:
        response = ask(app, path, method, headers=headers)
        return response.status_code, dict(response.headers), response.text

    def of_request(self, read: Callable[[Any], Any]) -> Callable[..., Any]:
        def of(request: Request) -> Any:
            return read(request)

        return of


FLASK, FASTAPI = OfFlask(), OfFastAPI()
BOTH = {"flask-limiter": FLASK, "slowapi": FASTAPI}


def served(of: OfFlask, app: Any, *requests: str) -> Served:
    """Return which requests were served. A request is ``GET /path NAME=VALUE`` with headers after the path."""
    codes = []
    for text in requests:
        method, path, *headers = text.split()
        codes.append(of.ask(app, method, path, dict(part.split("=") for part in headers))[0])
    assert set(codes) <= {200, 401, 404, 429}
    return [status != 429 for status in codes]


def both_serve(of: OfFlask, theirs: Any, ours: Any, expected: Served, *requests: str) -> None:
    """Expect that both applications serve the same requests."""
    assert served(of, theirs, *requests) == expected
    assert served(of, ours, *requests) == expected


def account(request: Any) -> str:
    return request.headers.get("Account", "")


@each("name", BOTH)
def test_per_method_and_methods_become_key_and_match(name: str) -> None:
    """``per_method`` becomes the method in the key, and ``methods`` a match on methods."""
    of = BOTH[name]
    (theirs, limiter), ours = of.before(), of.after()
    of.route(theirs, each=limiter.limit("1/hour", per_method=True)(of.view("each")))
    of.route(theirs, some=limiter.limit("1/hour", methods=["POST"])(of.view("some")))
    of.route(ours, each=of.limit("1/hour", key=["method", "ip"])(of.view("each")))
    of.route(ours, some=of.limit("1/hour", match={"methods": ["POST"]})(of.view("some")))
    both_serve(of, theirs, ours, [True, True, False], "GET /each", "POST /each", "GET /each")
    both_serve(of, theirs, ours, [True, True, True, False], "GET /some", "POST /some", "GET /some", "POST /some")


@each("name", BOTH)
def test_key_func_becomes_a_feature(name: str) -> None:
    """``key_func`` becomes a feature function or a built-in feature."""
    of = BOTH[name]
    features: list[tuple[str, dict[str, Any]]] = [("header:account", {}), ("account", {"account": account})]
    for key, functions in features:
        (theirs, limiter), ours = of.before(), of.after(features=functions)
        of.route(theirs, home=limiter.limit("1/hour", key_func=of.of_request(account))(of.view()))
        of.route(ours, home=of.limit("1/hour", key=key)(of.view()))
        asked = [f"GET /home Account={letter}" for letter in "aba"]
        both_serve(of, theirs, ours, [True, True, False], *asked)


@each("name", BOTH)
def test_a_limit_function_becomes_a_table(name: str) -> None:
    """A function for the limit becomes a function for the plan and a table of plans."""
    of = BOTH[name]

    def plan(request: Any) -> str:
        return account(request) or "free"

    (theirs, limiter), ours = of.before(), of.after(features={"plan": plan})
    limits = {"pro": "2/hour", "free": "1/hour"}
    dynamic = (lambda: limits[plan(flask.request)]) if of is FLASK else (lambda key: limits[key])
    of.route(theirs, home=limiter.limit(dynamic, key_func=of.of_request(plan))(of.view()))
    of.route(ours, home=of.limit("1/hour", key="plan", per={"plan": {"pro": "2/hour"}})(of.view()))
    asked = [*["GET /home Account=pro"] * 3, *["GET /home"] * 2]
    both_serve(of, theirs, ours, [True, True, False, True, False], *asked)


@each("name", BOTH)
def test_cost_and_exempt_functions_become_cost_and_match(name: str) -> None:
    """``cost`` stays a function, here of the request. ``exempt_when`` becomes a match on a feature."""
    of = BOTH[name]

    def cost(request: Any) -> int:
        return int(request.headers.get("Cost", "1"))

    def inside(request: Any) -> bool:
        return account(request) == "inside"

    (theirs, limiter), ours = of.before(), of.after(features={"inside": lambda request: str(inside(request))})
    functions = {"cost": of.of_request(cost), "exempt_when": of.of_request(inside)}
    of.route(theirs, home=limiter.limit("5/hour", **functions)(of.view()))
    of.route(ours, home=of.limit("5/hour", cost=cost, match={"inside": "False"})(of.view()))
    asked = ["GET /home Cost=9 Account=inside", "GET /home Cost=3", "GET /home Cost=2", "GET /home"]
    both_serve(of, theirs, ours, [True, True, True, False], *asked)


@each("name", BOTH)
def test_application_limits_and_request_filters(name: str) -> None:
    """Limits of the application become a rule without ``endpoint``, and a filter an entry on the allow list."""
    of = BOTH[name]
    theirs, limiter = of.before(application_limits=["3/hour"])
    rule = {"name": "application", "limits": "3/hour"}
    ours = of.after(rule, lists={"allow": {"header:account": ["monitoring"]}})
    if of is FLASK:
        limiter.request_filter(lambda: account(flask.request) == "monitoring")
    for app in (theirs, ours):
        of.route(app, a=of.view("a"), b=of.view("b"))
    both_serve(of, theirs, ours, [True, True, True, False], "GET /a", "GET /b", "GET /a", "GET /b")
    assert served(of, ours, "GET /a Account=monitoring") == [True]
    assert served(of, theirs, "GET /a Account=monitoring") == [of is FLASK]


@each("name", BOTH)
def test_header_names_stay_the_same(name: str) -> None:
    """Enabled headers had these names. The reset as a date is a setting."""
    of = BOTH[name]
    theirs, limiter = of.before(headers_enabled=True)
    ours = of.after(reset="epoch", headers=["x-ratelimit"])
    of.route(theirs, home=limiter.limit("3/hour")(of.view()))
    of.route(ours, home=of.limit("3/hour")(of.view()))
    fields = [of.ask(app, "GET", "/home", {})[1] for app in (theirs, ours)]
    named = [{name for name in field if "ratelimit" in name} for field in fields]
    assert named[0] == named[1]
    for field in ("x-ratelimit-limit", "x-ratelimit-remaining"):
        assert fields[0][field] == fields[1][field]
    assert all(float(field["x-ratelimit-reset"]) > NOW for field in fields)


@each("name", BOTH)
def test_a_misspelt_limit_stops_the_application(name: str) -> None:
    """There the error is logged and the view has no limit. Here the application does not start."""
    of = BOTH[name]
    theirs, limiter = of.before()
    of.route(theirs, home=limiter.limit("1/our")(of.view()))
    assert served(of, theirs, *["GET /home"] * 3) == [True] * 3
    with pytest.raises(ConfigError, match="cannot parse quota '1/our'"):
        of.limit("1/our")(of.view())


# -- Flask-Limiter alone -----------------------------------------------------------------------------------------------


def test_default_limits_per_method_become_a_method_in_the_key() -> None:
    theirs, _ = FLASK.before(default_limits=["1/hour"], default_limits_per_method=True)
    ours = FLASK.after({"name": "default", "limits": "1/hour", "key": ["view", "method", "ip"]})
    for app in (theirs, ours):
        FLASK.route(app, home=FLASK.view())
    both_serve(FLASK, theirs, ours, [True, True, False, False], *["GET /home", "POST /home"] * 2)


def test_an_empty_key_skips_the_limit() -> None:
    """Both packages skip the limit. Here a missing feature does so, and there the log has a line."""
    (theirs, limiter), ours = FLASK.before(), FLASK.after()
    FLASK.route(theirs, home=limiter.limit("1/hour", key_func=FLASK.of_request(account))(FLASK.view()))
    FLASK.route(ours, home=FLASK.limit("1/hour", key="header:account")(FLASK.view()))
    both_serve(FLASK, theirs, ours, [True, True], "GET /home", "GET /home")


def test_outcomes_other_than_a_status() -> None:
    """``deduct_when`` by anything but a status becomes a cost that the view settles."""

    def counted() -> bool:
        return "counted" in flask.request.args

    def view() -> str:
        flask.g.ratelimit.settle(1 if counted() else 0)
        return "hello"

    (theirs, limiter), ours = FLASK.before(), FLASK.after()
    FLASK.route(theirs, home=limiter.limit("1/hour", deduct_when=lambda response: counted())(FLASK.view()))
    FLASK.route(ours, home=FLASK.limit("1/hour")(view))
    asked = ["GET /home", "GET /home", "GET /home?counted", "GET /home"]
    both_serve(FLASK, theirs, ours, [True, True, True, False], *asked)


def test_exempt_flags_become_exempt_with_names() -> None:
    """``exempt`` with its flags covers the default limits or those of the application."""
    theirs, limiter = FLASK.before(default_limits=["1/hour"], application_limits=["3/hour"])
    application = {"name": "application", "limits": "3/hour"}
    ours = FLASK.after({"name": "default", "limits": "1/hour", "key": PER_VIEW}, application)
    for name, scope in (("default", ExemptionScope.DEFAULT), ("application", ExemptionScope.APPLICATION)):
        FLASK.route(theirs, **{name: limiter.exempt(flags=scope)(FLASK.view(name))})
        FLASK.route(ours, **{name: FLASK.exempt(name)(FLASK.view(name))})
    for app in (theirs, ours):
        FLASK.route(app, none=FLASK.view("none"))
    asked = ["GET /default"] * 2 + ["GET /application"] * 2 + ["GET /none", "GET /default"]
    both_serve(FLASK, theirs, ours, [True, True, True, False, True, False], *asked)


def test_a_blueprint_limit_counts_each_view() -> None:
    """A blueprint's limit counts each view separately, so its key has ``view``. An exempt one stays exempt."""
    theirs, limiter = FLASK.before(default_limits=["1/hour"])
    ours = FLASK.after({"name": "default", "limits": "1/hour", "key": PER_VIEW})
    for app in (theirs, ours):
        api, free = (flask.Blueprint(name, name, url_prefix=f"/{name}") for name in ("api", "free"))
        for blueprint in (api, free):
            for name in ("a", "b"):
                blueprint.add_url_rule(f"/{name}", name, FLASK.view())
        if app is theirs:
            limiter.limit("2/hour")(api)
            limiter.exempt(free)
        else:
            FLASK.limit("2/hour", key=PER_VIEW)(FLASK.exempt("default")(api))
            FLASK.exempt(free)
        app.register_blueprint(api)
        app.register_blueprint(free)
    both_serve(FLASK, theirs, ours, [True, True, False, True], *["GET /api/a"] * 3, "GET /api/b")
    both_serve(FLASK, theirs, ours, [True] * 3, *["GET /free/a"] * 3)


def test_a_limit_inside_a_view() -> None:
    """``with limiter.limit(...)`` becomes ``hit`` of your own limiter."""
    (theirs, limiter), ours = FLASK.before(), FLASK.after()
    own = Limiter([Rule(name="part", limits="1/hour")], clock=ManualClock(NOW))

    def view_of_theirs() -> str:
        with limiter.limit("1/hour"):
            return "hello"

    def view_of_ours() -> Any:
        try:
            own.hit({"ip": flask.request.remote_addr}).raise_for_limit()
        except RateLimitExceeded:
            return "later", 429
        return "hello"

    FLASK.route(theirs, home=view_of_theirs)
    FLASK.route(ours, home=view_of_ours)
    both_serve(FLASK, theirs, ours, [True, False], "GET /home", "GET /home")


@each(
    ("strategy", "algorithm"),
    [
        ("fixed-window", "fixed-window"),
        ("moving-window", "sliding-window-log"),
        ("sliding-window-counter", "sliding-window-counter"),
    ],
)
def test_each_strategy_becomes_an_algorithm(strategy: str, algorithm: str) -> None:
    (theirs, limiter), ours = FLASK.before(strategy=strategy), FLASK.after()
    FLASK.route(theirs, home=limiter.limit("2/hour")(FLASK.view()))
    FLASK.route(ours, home=FLASK.limit("2/hour", algorithm=algorithm)(FLASK.view()))
    both_serve(FLASK, theirs, ours, [True, True, False], *["GET /home"] * 3)


def texts(theirs: Any, ours: Any) -> list[list[str]]:
    """Return the bodies of two requests to each application."""
    return [[FLASK.ask(app, "GET", "/home", {})[2] for _ in range(2)] for app in (theirs, ours)]


def test_the_response_of_a_callback_and_an_error_message() -> None:
    """``on_breach`` becomes ``rejection``, and ``error_message`` an error handler that knows the rejecting rule."""
    theirs, limiter = FLASK.before(on_breach=lambda limit: flask.Response(f"{limit.limit.amount}, no more", 429))
    ours = FLASK.after(
        rejection=lambda request, verdict: flask.Response(f"{verdict.rejected_by[0].quota.amount}, no more", 429)
    )
    FLASK.route(theirs, home=limiter.limit("1/hour")(FLASK.view()))
    FLASK.route(ours, home=FLASK.limit("1/hour")(FLASK.view()))
    assert texts(theirs, ours) == [["hello", "1, no more"]] * 2

    (theirs, limiter), ours = FLASK.before(), FLASK.after()
    messages = {"home": "one an hour"}
    FLASK.route(theirs, home=limiter.limit("1/hour", error_message="one an hour")(FLASK.view()))
    FLASK.route(ours, home=FLASK.limit("1/hour", name="home")(FLASK.view()))
    theirs.register_error_handler(429, lambda error: (error.description, 429))
    ours.register_error_handler(429, lambda error: (messages[error.verdict.rejected_by[0].rule], 429))
    assert texts(theirs, ours) == [["hello", "one an hour"]] * 2


def test_the_limit_that_a_view_reads() -> None:
    """``limiter.current_limit`` becomes ``g.ratelimit`` with the limit and the remaining requests."""
    (theirs, limiter), ours = FLASK.before(), FLASK.after()

    @limiter.limit("3/hour")
    def view_of_theirs() -> str:
        current = limiter.current_limit
        return f"{current.remaining} of {current.limit.amount}"

    @FLASK.limit("3/hour")
    def view_of_ours() -> str:
        current = flask.g.ratelimit.decisions[0]
        return f"{current.remaining} of {current.limit}"

    FLASK.route(theirs, home=view_of_theirs)
    FLASK.route(ours, home=view_of_ours)
    assert texts(theirs, ours) == [["2 of 3", "1 of 3"]] * 2


@each(
    ("match", "expected"),
    [({}, [404, 404, 200, 429]), ({"path": "/static/**"}, [404, 429, 200, 200])],
)
def test_static_files_are_exempt(match: dict[str, str], expected: list[int]) -> None:
    """Both skip the view ``static``. Here a rule that names its path still applies."""
    app = flask.Flask("static", static_folder=".", static_url_path="/static")
    ratelimit_mw.flask.RateLimiter(app, limiter=still({"rules": [{"limits": "1/hour", "match": match}]}))
    FLASK.route(app, home=FLASK.view())
    asked = ["/static/no.txt"] * 2 + ["/home"] * 2
    assert [FLASK.ask(app, "GET", path, {})[0] for path in asked] == expected


def test_functions_with_the_same_name_have_their_own_limits() -> None:
    """There each of two lambdas has the limits of both. Here a decorator limits only its own function."""
    (theirs, limiter), ours = FLASK.before(), FLASK.after()
    for app, decorate in ((theirs, limiter.limit), (ours, FLASK.limit)):
        FLASK.route(app, a=decorate("1/hour")(lambda: "a"), b=decorate("2/hour")(lambda: "b"))
    assert served(FLASK, theirs, *["GET /b"] * 3) == [True, False, False]
    assert served(FLASK, ours, *["GET /b"] * 3) == [True, True, False]


def test_preflights_are_not_limited() -> None:
    """Default limits counted ``OPTIONS``. Here only a rule that names it does. Both packages count ``HEAD``."""
    theirs, _ = FLASK.before(default_limits=["2/hour"])
    ours = FLASK.after({"name": "default", "limits": "2/hour", "key": PER_VIEW})
    for app in (theirs, ours):
        FLASK.route(app, home=FLASK.view(), head=FLASK.view("head"))
    assert served(FLASK, theirs, *["OPTIONS /home"] * 3) == [True, True, False]
    assert served(FLASK, ours, *["OPTIONS /home"] * 3) == [True, True, True]
    both_serve(FLASK, theirs, ours, [True, True, False], "HEAD /head", "GET /head", "HEAD /head")


# -- slowapi alone -----------------------------------------------------------------------------------------------------


def test_application_limits_apply_to_decorated_views() -> None:
    """slowapi's do not apply to them. Here a decorator adds to the rules of the settings."""
    theirs, limiter = FASTAPI.before(application_limits=["1/hour"])
    ours = FASTAPI.after({"name": "application", "limits": "1/hour"})
    FASTAPI.route(theirs, home=limiter.limit("5/hour")(FASTAPI.view()))
    FASTAPI.route(ours, home=FASTAPI.limit("5/hour")(FASTAPI.view()))
    assert served(FASTAPI, theirs, *["GET /home"] * 3) == [True, True, True]
    assert served(FASTAPI, ours, *["GET /home"] * 3) == [True, False, False]


@each(("style", "key", "is_served"), [("url", ["path", "ip"], True), ("endpoint", ["ip"], False)])
def test_the_url_key_style_becomes_path_in_the_key(style: str, key: list[str], is_served: bool) -> None:
    """A count per URL, the default of slowapi, becomes ``path`` in the key."""
    (theirs, limiter), ours = FASTAPI.before(key_style=style), FASTAPI.after()
    theirs.add_api_route("/items/{number}", limiter.limit("1/hour")(FASTAPI.view()))
    ours.add_api_route("/items/{number}", FASTAPI.limit("1/hour", key=key)(FASTAPI.view()))
    asked = [f"GET /items/{number}" for number in (1, 2, 1)]
    both_serve(FASTAPI, theirs, ours, [True, is_served, False], *asked)


def test_a_shared_limit_has_one_count() -> None:
    """One ``limit`` object, and one ``RateLimit`` object, have one count everywhere."""
    (theirs, limiter), ours, dependent = FASTAPI.before(), FASTAPI.after(), FASTAPI.after()
    shared, ours_shared, depends = limiter.shared_limit("2/hour", "both"), FASTAPI.limit("2/hour"), RateLimit("2/hour")
    for name in ("a", "b"):
        FASTAPI.route(theirs, **{name: shared(FASTAPI.view(name))})
        FASTAPI.route(ours, **{name: ours_shared(FASTAPI.view(name))})
        dependent.add_api_route(f"/{name}", FASTAPI.view(name), dependencies=[Depends(depends)])
    for app in (ours, dependent):
        both_serve(FASTAPI, theirs, app, [True, True, False], "GET /a", "GET /b", "GET /a")
        limiter.reset()


def test_default_limits_apply_behind_routers_and_mounts() -> None:
    """slowapi's middleware finds only the application's own routes. Here all routes are known."""
    ours = FASTAPI.after({"name": "default", "limits": "1/hour", "key": PER_VIEW})
    router, mounted = APIRouter(), FastAPI()
    for routes_of in (router, mounted):
        routes_of.add_api_route("/items", FASTAPI.view())
    ours.include_router(router, prefix="/api")
    ours.mount("/more", mounted)
    assert served(FASTAPI, ours, *["GET /api/items"] * 2, *["GET /more/items"] * 2) == [True, False] * 2


def test_the_response_to_a_rejected_request() -> None:
    """The body is problem+json unless ``RateLimitExceeded`` has a handler, which can read the same values."""
    (theirs, limiter), ours, handled = FASTAPI.before(), FASTAPI.after(), FASTAPI.after()
    FASTAPI.route(theirs, home=limiter.limit("1/hour")(FASTAPI.view()))
    for app in (ours, handled):
        FASTAPI.route(app, home=FASTAPI.limit("1/hour")(FASTAPI.view()))

    def exceeded(request: Request, error: Any) -> Response:
        return Response(f"no more than {error.verdict.rejected_by[0].quota}", 429)

    handled.add_exception_handler(RateLimitExceeded, exceeded)
    second = [[FASTAPI.ask(app, "GET", "/home", {}) for _ in range(2)][1] for app in (theirs, ours, handled)]
    assert [status for status, *_ in second] == [429] * 3
    assert second[0][2] == '{"error":"Rate limit exceeded: 1 per 1 hour"}'
    assert second[1][1]["content-type"] == "application/problem+json"
    assert second[2][2] == "no more than 1/hour"


def test_an_exempt_view_stays_exempt() -> None:
    """``@limiter.exempt`` becomes ``@exempt``, with names for some rules only."""
    theirs, limiter = FASTAPI.before(default_limits=["1/hour"])
    application = {"name": "application", "limits": "5/hour"}
    ours = FASTAPI.after({"name": "default", "limits": "1/hour", "key": PER_VIEW}, application)
    FASTAPI.route(theirs, free=limiter.exempt(FASTAPI.view("free")), home=FASTAPI.view("home"))
    FASTAPI.route(ours, free=FASTAPI.exempt(FASTAPI.view("free")), home=FASTAPI.view("home"))
    FASTAPI.route(ours, some=FASTAPI.exempt("default")(FASTAPI.view("some")))
    both_serve(FASTAPI, theirs, ours, [True] * 4 + [False], *["GET /free"] * 3, *["GET /home"] * 2)
    assert served(FASTAPI, ours, *["GET /some"] * 5) == [True] * 4 + [False]
