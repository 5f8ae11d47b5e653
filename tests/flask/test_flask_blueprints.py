"""Limits and exemptions of blueprints: nested ones, ones that are registered twice, and views with their own."""

from collections.abc import Callable
from threading import Thread
from typing import Any

from command_line import run_with
from flask import Blueprint, Flask
from flask.views import MethodView
from flask_calls import ask, hello, statuses, still
from tables import each

from ratelimit_mw.flask import RateLimiter, exempt, limit
from ratelimit_mw.testing import limits_off

DEFAULT: dict[str, Any] = {"name": "default", "limits": "1/minute", "key": ["endpoint", "ip"]}
PER_VIEW: dict[str, Any] = {"key": ["endpoint", "ip"]}
Decorate = Callable[[Blueprint], Blueprint]


def limited(*blueprints: Any, rules: Any = (DEFAULT,), **options: Any) -> Flask:
    """Return an application with these blueprints, or with blueprints and their options."""
    app = Flask("app")
    for each_of in blueprints:
        blueprint, more = each_of if isinstance(each_of, tuple) else (each_of, {})
        app.register_blueprint(blueprint, **more)
    RateLimiter(app, limiter=still({"rules": list(rules)}), **options)
    return app


def blueprint_of(views: dict[str, Any], name: str = "shop", **options: Any) -> Blueprint:
    """Return a blueprint with these views by path."""
    blueprint = Blueprint(name, "app", **options)
    for number, (path, view) in enumerate(views.items()):
        blueprint.add_url_rule(path, f"view{number}", view, methods=["GET", "POST"])
    return blueprint


def family(parent: Decorate, child: Decorate, view: Any = hello) -> Flask:
    """``/parent/`` and ``/parent/child/``, with a default limit of one request for each view."""
    outer = parent(blueprint_of({"/": hello}, "parent", url_prefix="/parent"))
    outer.register_blueprint(child(blueprint_of({"/": view}, "child", url_prefix="/child")))
    return limited(outer)


def unmarked(blueprint: Blueprint) -> Blueprint:
    return blueprint


@each(
    ("parent", "child", "expected"),
    [
        (exempt, unmarked, [None, None]),
        (unmarked, exempt, [1, None]),
        (unmarked, limit("2/minute", **PER_VIEW), [1, 1]),
        (unmarked, lambda child: limit("2/minute", **PER_VIEW)(exempt("default")(child)), [1, 2]),
        (exempt, limit("2/minute", **PER_VIEW), [None, 2]),
        (exempt("default"), limit("2/minute", **PER_VIEW), [None, 2]),
        (limit("2/minute", name="parent", **PER_VIEW), exempt("default"), [1, 2]),
        (limit("2/minute", name="parent", **PER_VIEW), exempt("parent", "default"), [1, None]),
        (limit("2/minute", name="parent"), exempt, [1, None]),
    ],
)
def test_a_nested_blueprint_adds_to_the_outer_one(parent: Any, child: Any, expected: list[int | None]) -> None:
    """Limits of both apply, minus the innermost exemption. A limit inside an exempt blueprint applies."""
    app = family(parent, child)
    for path, most in zip(("/parent/", "/parent/child/"), expected, strict=True):
        allowed = statuses(app, path, 4).count(200)
        assert allowed == (4 if most is None else most), path


def test_a_limit_on_a_blueprint_holds_for_all_its_views() -> None:
    """All views of the blueprint and its nested blueprints share one count. Other views are not limited."""
    shop = limit("4/minute", name="shop")(blueprint_of({"/": hello}, url_prefix="/shop"))
    views = {"/": hello, "/pay": exempt("cart")(lambda: "paid")}
    shop.register_blueprint(limit("2/minute", name="cart")(blueprint_of(views, "cart", url_prefix="/cart")))
    app = limited(shop, blueprint_of({"/": hello}, "home"), rules=())
    paths = ["/shop/", "/shop/cart/", "/shop/cart/", "/shop/cart/", "/shop/cart/pay", "/shop/cart/pay", "/shop/", "/"]
    assert [ask(app, path).status_code for path in paths] == [200, 200, 200, 429, 200, 429, 429, 200]


def test_a_limit_on_a_blueprint_without_the_extension_is_an_error() -> None:
    """So it is for the blueprints inside, unless limits are off. Other views of the application are not limited."""
    app, shop = Flask("app"), limit("1/minute")(blueprint_of({"/": hello}, url_prefix="/shop"))
    shop.register_blueprint(blueprint_of({"/": hello}, "cart", url_prefix="/cart"))
    app.register_blueprint(shop)
    app.add_url_rule("/", view_func=hello)
    paths = ["/", "/shop/", "/shop/cart/"]
    assert [ask(app, path).status_code for path in paths] == [200, 500, 500]
    with limits_off():
        assert [ask(app, path).status_code for path in paths] == [200, 200, 200]


def test_a_limit_on_the_application_holds_for_every_view() -> None:
    """A limit on an application applies like one on a blueprint, and a view can be exempt from it."""
    app = limited(blueprint_of({"/": hello, "/health": exempt(lambda: "fine")}), rules=())
    limit("1/minute")(app)
    assert [statuses(app, path, 2) for path in ("/", "/health")] == [[200, 429], [200, 200]]


class Items(MethodView):
    def get(self) -> str:
        return "got"

    @limit("2/minute")
    def post(self) -> str:
        return "posted"


@each("in_order", [1, -1])
def test_an_exempt_blueprint_keeps_its_own_limits(in_order: int) -> None:
    """So a blueprint can have a limit instead of those of the settings, in either order."""
    shop = blueprint_of({"/": hello})
    for decorate in [exempt, limit("2/minute")][::in_order]:
        decorate(shop)
    assert statuses(limited(shop), times=4).count(200) == 2


@each(
    ("view", "method", "most"),
    [
        (limit("2/minute")(lambda: "few"), "GET", 2),
        (Items.as_view("items"), "POST", 2),
        (exempt("default")(limit("2/minute")(lambda: "few")), "GET", 2),
        (exempt(limit("2/minute")(lambda: "few")), "GET", 4),
        (limit("2/minute")(exempt(lambda: "few")), "GET", 4),
    ],
)
def test_a_limit_inside_of_an_exempt_blueprint_applies(view: Any, method: str, most: int) -> None:
    """The rules of the settings do not. A view that is exempt itself has no limit, in either order."""
    shop = exempt(blueprint_of({"/": view}))
    assert statuses(limited(shop), method=method, times=4).count(200) == most


def test_the_commands_show_a_limit_inside_of_an_exempt_blueprint() -> None:
    """They list the rule with its route, and say why the others do not apply."""
    app = family(exempt, unmarked, limit("2/minute", name="few")(lambda: "few"))

    def run(*words: str) -> list[str]:
        output = run_with(app, *words).stdout
        return [" ".join(line.split()) for line in output.splitlines()]

    listed = run("check")
    assert {"exempt: /parent/ from every rule", "exempt: /parent/child/ from every other rule"} <= set(listed)
    assert [line for line in listed if line.startswith("few @limit ") and "/parent/child/ " in line]
    explained = run("explain", "GET", "/parent/child/", "--feature", "ip=192.0.2.7")
    assert "default the view is exempt" in explained
    assert [line for line in explained if line.startswith("few ip=192.0.2.7 2/minute")]


@each(("key", "expected"), [(["ip"], [200, 429, 429]), (["endpoint", "ip"], [200, 200, 429])])
@each("second", [{"name": "again"}, {"name": "again.dotted"}, {"name_prefix": "again"}])
def test_a_blueprint_may_be_registered_twice(key: list[str], expected: list[int], second: dict[str, str]) -> None:
    """Its limit is one count under all names and prefixes, or one for each route with ``endpoint``."""
    shop = limit("1/minute", key=key)(blueprint_of({"/": hello}))
    app = limited((shop, {"url_prefix": "/one"}), (shop, {"url_prefix": "/two", **second}), rules=())
    assert [ask(app, path).status_code for path in ("/one/", "/two/", "/two/")] == expected


def test_a_view_whose_name_has_a_dot_is_in_no_blueprint() -> None:
    """Its name begins like that of a blueprint, with another letter before it."""
    app = limited(limit("1/minute")(blueprint_of({"/": hello}, url_prefix="/shop")), rules=())
    app.add_url_rule("/other", "_shop.other", hello)
    assert statuses(app, "/other") == [200] * 3


def test_a_limit_added_while_the_application_serves_counts() -> None:
    """Flask allows no further views then, but a limit on a blueprint is no view. Another thread may read the views."""
    app, limiter, shop = Flask("app"), still({"rules": []}), blueprint_of({"/": hello})
    adding = Thread(target=limit("1/minute"), args=[shop])
    limiter.reloads.preparations.append(lambda _: adding.start() if adding.ident is None else None)
    limiter.reloads.preparations.append(lambda _: adding.join(0.2))  # it waits for the views
    app.register_blueprint(shop)
    RateLimiter(app, limiter=limiter)
    assert ask(app).status_code == 200
    adding.join()
    assert statuses(app, times=2) == [200, 429]


def test_a_key_function_counts_for_a_whole_blueprint() -> None:
    """A limit of a blueprint may use a feature of the application, and limits from a function."""
    per_account = limit(lambda account: "2/minute" if account == "pro" else "1/minute", key=["account"])
    app = limited(
        per_account(blueprint_of({"/a": hello, "/b": hello})),
        rules=(),
        features={"account": lambda request: request.headers["X-Account"]},
    )
    sent = [(account, path) for account in ("pro", "free") for path in ("/a", "/b", "/a")]
    assert [ask(app, path, headers={"X-Account": account}).status_code for account, path in sent] == [
        *[200, 200, 429],
        *[200, 429, 429],
    ]
