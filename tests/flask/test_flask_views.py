"""Limits on Flask functions, coroutines, classes, methods, blueprints and applications."""

from __future__ import annotations

import functools
from typing import Any

import flask
import pytest
from flask import Blueprint, Flask
from flask.views import MethodView, View
from flask_calls import app_of, ask, hello, one_rule, statuses, still
from tables import each

from ratelimit_mw import ConfigError
from ratelimit_mw.errors import MissingMiddlewareError
from ratelimit_mw.flask import RateLimiter, exempt, limit
from ratelimit_mw.testmode import limits_off


def test_an_async_view_is_limited() -> None:
    """A coroutine function is limited like any other."""

    @limit("1/minute")
    async def view() -> str:
        return "hello"

    assert statuses(app_of(views={"/": view}), times=2) == [200, 429]


def test_a_limit_holds_on_either_side_of_the_route() -> None:
    """@limit above @app.route limits like @limit below it, because the extension finds the route of the function."""
    app = Flask("app")

    @limit("1/minute")
    @app.get("/above")
    def above() -> str:
        return "hello"

    @app.get("/below")
    @limit("1/minute")
    def below() -> str:
        return "hello"

    RateLimiter(app, limiter=still())
    assert [statuses(app, path, 2) for path in ("/above", "/below")] == [[200, 429]] * 2


def test_a_decorator_in_between_hides_no_limit() -> None:
    """A decorator that keeps the function's attributes, as functools.wraps does, may stand above @limit."""

    def plain(view: Any) -> Any:
        @functools.wraps(view)
        def inner(**values: Any) -> Any:
            return view(**values)

        return inner

    assert statuses(app_of(views={"/": plain(limit("1/minute")(hello))}), times=2) == [200, 429]


class Items(MethodView):
    def get(self, **_: Any) -> str:
        return "got"

    def post(self, **_: Any) -> str:
        return "posted"


def by_class() -> Any:
    return limit("1/minute")(type("Limited", (Items,), {})).as_view("items")


def by_list() -> Any:
    return type("Limited", (Items,), {"decorators": [limit("1/minute")]}).as_view("items")


def by_base() -> Any:
    return type("Limited", (limit("1/minute")(type("Base", (Items,), {})),), {}).as_view("items")


def by_dispatch() -> Any:
    def dispatch_request(self: Any, **values: Any) -> Any:
        return Items.dispatch_request(self, **values)

    return type("Limited", (Items,), {"dispatch_request": limit("1/minute")(dispatch_request)}).as_view("items")


@each("view", [by_class, by_list, by_base, by_dispatch])
def test_a_class_based_view_is_limited(view: Any) -> None:
    """A limit on the class, in its decorators, on its base or on its dispatch holds for all its methods."""
    app = app_of(views={"/": view()})
    assert [ask(app).status_code, ask(app, method="POST").status_code] == [200, 429]


def test_a_limit_on_one_method_of_a_class_holds_only_for_it() -> None:
    """Limits on get and post count separately, HEAD counts as GET, and an overriding subclass keeps the limit."""

    class Limited(Items):
        @limit("2/minute")
        def get(self, **_: Any) -> str:
            return "got"

        @limit("1/minute")
        def post(self, **_: Any) -> str:
            return "posted"

    class Overriding(Limited):
        def post(self, **values: Any) -> str:
            return super().post(**values)

    app = app_of(views={"/": Overriding.as_view("items")})
    assert statuses(app, method="POST", times=2) == [200, 429]
    assert [ask(app, method="HEAD").status_code, *statuses(app, times=2)] == [200, 200, 429]


def test_an_exempt_method_of_a_class_is_exempt_for_head_too() -> None:
    """HEAD counts as GET: the site's limit holds for neither of them, and for POST it does."""
    app = app_of(one_rule("1/minute"), {"/": type("Free", (Items,), {"get": exempt(Items.get)}).as_view("items")})
    assert [ask(app, method=method).status_code for method in ("HEAD", "GET", "HEAD", "POST", "POST")] == [200] * 4 + [
        429
    ]


def test_a_plain_class_view_is_limited() -> None:
    """A View with one dispatch_request is limited, even when it is async."""

    @limit("1/minute")
    class Hello(View):
        async def dispatch_request(self) -> str:
            return "hello"

    assert statuses(app_of(views={"/": Hello.as_view("hello")}), times=2) == [200, 429]


def blueprints() -> Flask:
    """/shop/ is in a limited blueprint, /shop/cart/ and /shop/cart/pay are in a nested one."""
    app = Flask("app")
    shop, cart = Blueprint("shop", "app", url_prefix="/shop"), Blueprint("cart", "app", url_prefix="/cart")
    cart.add_url_rule("/", "all", hello)
    cart.add_url_rule("/pay", "pay", exempt("cart")(lambda: "paid"))
    shop.add_url_rule("/", "all", hello)
    app.add_url_rule("/", "home", hello)
    limit("4/minute", name="shop")(shop)
    limit("2/minute", name="cart")(cart)
    shop.register_blueprint(cart)
    app.register_blueprint(shop)
    RateLimiter(app, limiter=still())
    return app


def test_a_limit_on_a_blueprint_holds_for_all_its_views() -> None:
    """All views of the blueprint and its nested blueprints share one count. Other views are not limited."""
    app = blueprints()
    assert [ask(app, path).status_code for path in ("/shop/", "/shop/cart/", "/shop/cart/", "/shop/cart/")] == [
        200,
        200,
        200,
        429,
    ]
    assert [ask(app, path).status_code for path in ("/shop/cart/pay", "/shop/cart/pay", "/shop/", "/")] == [
        200,
        429,
        429,
        200,
    ]


def test_a_limit_on_the_application_holds_for_every_view() -> None:
    """A limit on an application applies like one on a blueprint, and a view can be exempt from it."""
    app = Flask("app")
    app.add_url_rule("/", view_func=hello)
    app.add_url_rule("/health", view_func=exempt(lambda: "fine"), endpoint="health")
    limit("1/minute")(app)
    RateLimiter(app, limiter=still())
    assert [statuses(app, path, 2) for path in ("/", "/health")] == [[200, 429], [200, 200]]


def test_an_exempt_blueprint_is_not_limited() -> None:
    """@exempt on a blueprint removes its views from every rule, including those of the settings."""
    app, assets = Flask("app"), exempt(Blueprint("assets", "app"))
    assets.add_url_rule("/logo", view_func=hello)
    app.register_blueprint(assets)
    RateLimiter(app, limiter=one_rule("1/minute"))
    assert statuses(app, "/logo") == [200] * 3
    assert statuses(app, "/", 2) == [404, 429]


def test_parameters_come_from_paths_defaults_and_preprocessors() -> None:
    """A limit may use a parameter of a blueprint's prefix, a route's default or a url_value_preprocessor."""
    api = limit("1/minute", key=["path:town", "path:kind"])(Blueprint("api", "api", url_prefix="/<town>"))
    api.add_url_rule("/houses", "houses", hello, defaults={"kind": "house"})
    app = app_of()
    app.register_blueprint(api)
    assert [ask(app, path).status_code for path in ("/rome/houses", "/ostia/houses", "/rome/houses")] == [200, 200, 429]
    preprocessed = app_of(views={"/": limit("1/minute", key=["path:site"])(hello)})
    preprocessed.url_value_preprocessor(
        lambda endpoint, values: values.update(site=flask.request.headers.get("X-Site"))
    )
    sites = [ask(preprocessed, headers={"X-Site": site}).status_code for site in "aba"]
    assert sites == [200, 200, 429]


def test_a_parameter_counts_that_a_preprocessor_removes() -> None:
    """Applications move the language or the tenant from the parameters to ``g``."""
    api = Blueprint("api", "api", url_prefix="/<tenant>")
    api.url_value_preprocessor(lambda endpoint, values: setattr(flask.g, "tenant", values.pop("tenant")))
    api.add_url_rule("/login", "login", lambda: flask.g.tenant)
    app = Flask("app")
    limits = RateLimiter(app, settings={"rules": [{"name": "tenant", "key": ["path:tenant"], "limits": "1/minute"}]})
    app.register_blueprint(api)
    limits.check(app)
    assert [ask(app, f"/{tenant}/login").status_code for tenant in "aab"] == [200, 429, 200]


def test_a_parameter_that_a_preprocessor_changes_counts_as_the_view_sees_it() -> None:
    """Spellings that it merges share a count. An object in the place of the text does not change the key."""
    app = app_of(views={"/<id>": limit("1/minute", key=["path:id"])(hello)})
    app.url_value_preprocessor(lambda endpoint, values: values.update(id=values["id"].replace("-", "")))
    assert [ask(app, f"/{text}").status_code for text in ("ab", "a-b", "a--b", "b")] == [200, 429, 429, 200]
    app = app_of(views={"/<id>": limit("1/minute", key=["path:id"])(hello)})
    app.url_value_preprocessor(lambda endpoint, values: values.update(id=object()))
    assert [ask(app, f"/{text}").status_code for text in "aab"] == [200, 429, 200]


def test_a_limit_on_a_partial_is_an_error() -> None:
    """Only functions, classes and blueprints can be limited."""
    with pytest.raises(ConfigError, match="expected a view"):
        limit("1/minute")(functools.partial(hello))


def test_a_limit_without_the_extension_is_an_error() -> None:
    """A limited function, class or method does not run without the extension."""
    limited = type("Limited", (Items,), {"get": limit("1/minute")(lambda self: "got")})
    views = [limit("1/minute")(hello), by_class(), by_list(), limited.as_view("items")]
    app = Flask("app")
    for number, view in enumerate(views):
        app.add_url_rule(f"/{number}", f"view{number}", view)
    app.testing = True
    for number in range(len(views)):
        with pytest.raises(MissingMiddlewareError, match="RateLimiter"):
            ask(app, f"/{number}")
        with limits_off():
            assert ask(app, f"/{number}").status_code == 200


def test_a_decision_does_not_carry_over_to_the_next_request() -> None:
    """A view called directly, after a decided request in the same thread, raises the error about the extension."""
    view = limit("5/minute")(lambda: "hello")
    assert ask(app_of(views={"/": view})).status_code == 200
    with pytest.raises(MissingMiddlewareError):
        view()


def test_a_call_limits_only_one_route() -> None:
    """A module function that a call of limit() limits on one route stays unlimited on another."""
    limited = app_of(views={"/": limit("1/minute")(hello)})
    assert [statuses(app, times=2) for app in (limited, app_of())] == [[200, 429], [200, 200]]


def test_a_view_needs_no_request_argument() -> None:
    """A view keeps its signature, its name and its parameters."""

    @limit("1/minute")
    def item(number: int) -> str:
        """An item."""
        return flask.request.path + str(number)

    assert (item.__name__, item.__doc__) == ("item", "An item.")
    assert ask(app_of(views={"/items/<int:number>": item}), "/items/7").text == "/items/77"
