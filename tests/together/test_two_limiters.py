"""A middleware around another one with other rules: the view settles the rules of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import outcome_scene as scene
import pytest
from calls import ask, ask_wsgi
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.urls import path
from django_calls import project
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule, Verdict
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware

PATH = "/200/plain"


def limiter_of(name: str) -> Limiter:
    return Limiter([Rule(name=name, limits="99/minute", cost=10)], SharedStore(), ManualClock(1_000_000.0))


def left(limiter: Limiter) -> int:
    return limiter.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining


def in_asgi(outer: Limiter, inner: Limiter) -> None:
    ask(RateLimitMiddleware(scene.asgi_app(inner, {}), limiter=outer), PATH)


def in_starlette(outer: Limiter, inner: Limiter) -> None:
    app = scene.starlette_app(inner, {})
    app.add_middleware(RateLimitMiddleware, limiter=outer)
    ask(app, PATH)


def in_fastapi(outer: Limiter, inner: Limiter) -> None:
    app = scene.fastapi_app(inner, {"limits": "9/minute"}, dependency=True, late=True)
    app.add_middleware(RateLimitMiddleware, limiter=outer)
    ask(app, PATH)


def in_wsgi(outer: Limiter, inner: Limiter) -> None:
    ask_wsgi(WSGIMiddleware(scene.wsgi_app(inner, {}), limiter=outer), PATH)


def in_flask(outer: Limiter, inner: Limiter) -> None:
    app = scene.flask_app(inner, {})
    app.wsgi_app = WSGIMiddleware(app.wsgi_app, limiter=outer)
    ask_wsgi(app, PATH)


def in_django(outer: Limiter, inner: Limiter) -> None:
    with project(inner, path("<int:status>/<how>", scene.django_view)):
        ask_wsgi(WSGIMiddleware(WSGIHandler(), limiter=outer), PATH)


def in_async_django(outer: Limiter, inner: Limiter) -> None:
    with project(inner, path("<int:status>/<how>", scene.adjango_view)):
        ask(RateLimitMiddleware(ASGIHandler(), limiter=outer), PATH)


WAYS = [in_asgi, in_starlette, in_fastapi, in_wsgi, in_flask, in_django, in_async_django]


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_limiter_leaves_the_rules_of_another_to_it(is_ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``settle`` and ``refund`` of one limiter reach both stores, during the request and after its end."""
    seen: list[Verdict] = []

    def change(verdict: Verdict) -> None:
        outer.settle(verdict, 3, rule="inner")
        inner.settle(verdict, 4, rule="outer")

    outer, inner = limiter_of("outer"), limiter_of("inner")
    monkeypatch.setattr(scene, "act", lambda verdict, _: seen.append(verdict) if is_ended else change(verdict))
    in_wsgi(outer, inner)
    for verdict in seen:
        change(verdict)
    assert (left(outer), left(inner)) == (95, 96)
    for verdict in seen:
        outer.refund(verdict)
        assert (left(outer), left(inner)) == (99, 99)


@pytest.mark.parametrize("serve", WAYS)
def test_a_view_settles_the_rules_of_both(
    serve: Callable[[Limiter, Limiter], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each middleware applies the cost of its own rule at the end."""

    def settle(verdict: Verdict, _: Any) -> None:
        verdict["outer"].settle(3)
        verdict["inner"].settle(4)

    outer, inner = limiter_of("outer"), limiter_of("inner")
    monkeypatch.setattr(scene, "act", settle)
    serve(outer, inner)
    assert (left(outer), left(inner)) == (96, 95)
