"""The WSGI middleware reads environ, mounts and features of requests."""

from __future__ import annotations

from calls import limiter
from flask import Flask
from tables import each
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from wsgi_calls import Served, limited, listing, statuses

from ratelimit_mw.wsgi import RateLimitMiddleware

# -- requests ----------------------------------------------------------------------------------------------


@each(
    ("info", "path"),
    [
        ("/items", "/items"),
        ("", "/"),
        (None, "/"),
        ("items", "/items"),
        ("//items/", "/items"),
        ("/caf\u00c3\u00a9", "/caf\u00e9"),
        ("/caf\u00e9", "/caf\ufffd"),
    ],
)
def test_rules_match_the_decoded_path(info: str | None, path: str) -> None:
    """The middleware decodes PATH_INFO as UTF-8 and accepts a path that is not UTF-8."""
    app = RateLimitMiddleware(listing, limiter=limiter("1/minute", match={"path": path}))
    assert statuses(app, 2, PATH_INFO=info) == [200, 429]


def test_a_path_without_a_slash_does_not_evade_a_rule() -> None:
    """Werkzeug routes ``GET login`` to the view of ``/login``, so the rule for it counts such requests."""
    app = Flask("app")
    app.add_url_rule("/login", view_func=lambda: "in")
    guarded = RateLimitMiddleware(app.wsgi_app, limiter=limiter("1/minute", match={"path": "/login"}))
    paths = ["/login", "login", "//login"]
    assert [Served(app.wsgi_app, PATH_INFO=path).status[:3] for path in paths] == ["200"] * 3
    assert [Served(guarded, PATH_INFO=path).status[:3] for path in paths] == ["200", "429", "429"]


def test_the_user_is_remote_user() -> None:
    """REMOTE_USER is the user. A rule by user does not apply to a request without it."""
    app = limited(listing, limiter("1/minute", key=["user"]))
    assert statuses(app, 2, REMOTE_USER="ann") == [200, 429]
    assert statuses(app, 2, REMOTE_USER="bob") == [200, 429]
    assert statuses(app, 2) == [200, 200]


# -- several middlewares -----------------------------------------------------------------------------------


def test_a_mounted_middleware_matches_paths_below_the_mount() -> None:
    """Under a Werkzeug mount, the rules of the inner application match its own paths."""
    inner = RateLimitMiddleware(listing, limiter=limiter("1/minute", match={"path": "/items"}))
    app = DispatcherMiddleware(listing, {"/sub": inner})
    assert statuses(app, 2, PATH_INFO="/sub/items") == [200, 429]
    assert statuses(app, 2, PATH_INFO="/items") == [200, 200]
