"""Views, blueprints and decorators that are added after ``check`` still apply."""

from __future__ import annotations

import pytest
from flask import Blueprint, Flask
from flask_calls import ask, hello, one_rule, statuses, still

from ratelimit_mw import ConfigError, Limiter
from ratelimit_mw.flask import RateLimiter, exempt, limit


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
