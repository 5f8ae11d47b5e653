"""Limits on Flask's kinds of views, and the parameters that they count by."""

from typing import Any

import flask
import pytest
from flask import Blueprint, Flask
from flask.views import MethodView, View
from flask_calls import app_of, ask, hello, one_rule, statuses, still
from tables import each

from ratelimit_mw import ConfigError, Limiter
from ratelimit_mw.flask import RateLimiter, exempt, limit


async def ahello() -> str:
    return "hello"


class Items(MethodView):
    def get(self) -> str:
        return "got"


class Listed(Items):
    decorators = [limit("1/minute")]


class Dispatched(Items):
    @limit("1/minute")
    def dispatch_request(self, **values: Any) -> Any:
        return super().dispatch_request(**values)


@limit("1/minute")
class Hello(View):
    async def dispatch_request(self) -> str:
        return "hello"


@each("view", [limit("1/minute")(ahello), *(kind.as_view("items") for kind in (Listed, Dispatched, Hello))])
def test_views_of_all_kinds_are_limited(view: Any) -> None:
    """Coroutines, a limit in the decorators of a class or on its dispatch, and a class that is async."""
    assert statuses(app_of(views={"/": view}), times=2) == [200, 429]


def test_a_limit_in_the_decorators_of_a_class_has_the_name_of_the_view() -> None:
    """Flask gives the name to the function that it makes from a class."""
    assert ask(app_of(views={"/": Listed.as_view("items")})).headers["RateLimit-Policy"].startswith('"items"')


def test_a_view_needs_no_request_argument() -> None:
    """A view keeps its signature, its name and its parameters."""

    @limit("1/minute")
    def item(number: int) -> str:
        """An item."""
        return flask.request.path + str(number)

    assert (item.__name__, item.__doc__) == ("item", "An item.")
    assert ask(app_of(views={"/items/<int:number>": item}), "/items/7").text == "/items/77"


# -- parameters ------------------------------------------------------------------------------------------------


def test_parameters_come_from_paths_defaults_and_preprocessors() -> None:
    """A limit may use a parameter of a blueprint's prefix, a route's default or a url_value_preprocessor."""
    api = limit("1/minute", key=["path:town", "path:kind"])(Blueprint("api", "api", url_prefix="/<town>"))
    api.add_url_rule("/houses", "houses", hello, defaults={"kind": "house"})
    app = app_of()
    app.register_blueprint(api)
    assert [ask(app, path).status_code for path in ("/rome/houses", "/ostia/houses", "/rome/houses")] == [200, 200, 429]
    app = app_of(views={"/": limit("1/minute", key=["path:site"])(hello)})
    app.url_value_preprocessor(lambda endpoint, values: values.update(site=flask.request.headers.get("X-Site")))
    assert [ask(app, headers={"X-Site": site}).status_code for site in "aba"] == [200, 200, 429]


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


@each(
    ("change", "sent", "expected"),
    [
        (lambda text: text.replace("-", ""), ("ab", "a-b", "a--b", "b"), [200, 429, 429, 200]),
        (lambda _: object(), "aab", [200, 429, 200]),
    ],
)
def test_a_parameter_that_a_preprocessor_changes_counts_as_the_view_sees_it(
    change: Any, sent: Any, expected: list[int]
) -> None:
    """Spellings that it merges share a count. An object in the place of the text does not change the key."""
    app = app_of(views={"/<id>": limit("1/minute", key=["path:id"])(hello)})
    app.url_value_preprocessor(lambda endpoint, values: values.update(id=change(values["id"])))
    assert [ask(app, f"/{text}").status_code for text in sent] == expected


# -- views that are added after check --------------------------------------------------------------------------


def checked_app(limiter: Limiter | None = None) -> Flask:
    """Return an application that was checked too early."""
    app = Flask("app")
    app.add_url_rule("/shop/", "shop", hello)
    RateLimiter(app, limiter=limiter or still()).check(app)
    return app


def test_a_limited_blueprint_added_after_the_check_is_limited() -> None:
    """Its views have the limit of the blueprint, although check saw neither."""
    app, late = checked_app(), limit("1/minute")(Blueprint("late", "app", url_prefix="/late"))
    late.add_url_rule("/", "all", hello)
    app.register_blueprint(late)
    assert [statuses(app, "/late/", 2), statuses(app, "/shop/", 2)] == [[200, 429], [200, 200]]


def test_views_added_after_the_check_are_limited_or_exempt() -> None:
    """A late @limit limits the view, and a late @exempt exempts it."""
    app = checked_app(one_rule("2/minute"))
    app.add_url_rule("/few", "few", limit("1/minute")(hello))
    app.add_url_rule("/free", "free", exempt(lambda: "fine"))
    assert [statuses(app, "/few", 2), statuses(app, "/free", 4)] == [[200, 429], [200] * 4]


def test_a_mistake_added_after_the_check_is_found() -> None:
    """The next check reads the views again and reports it, and so does the first request."""
    app = checked_app()
    app.add_url_rule("/", "home", exempt("missing")(lambda: "hello"))
    with pytest.raises(ConfigError, match="unknown rule 'missing'"):
        RateLimiter().check(app)
    assert statuses(app, times=2) == [500, 500]


def test_a_view_added_after_the_first_request_is_limited() -> None:
    """Flask rejects a late view, but code can write it into Flask's tables. The other counts stay."""
    app = checked_app(one_rule("2/minute", match={"path": "/shop"}))
    assert statuses(app, "/shop/", 2) == [200, 200]
    app.view_functions["late"] = limit("1/minute")(hello)
    app.url_map.add(app.url_rule_class("/late", endpoint="late"))
    assert statuses(app, "/late", 2) == [200, 429]
    assert ask(app, "/shop/").status_code == 429
