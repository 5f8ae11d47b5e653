"""A 405 counts under the template of its path in Werkzeug and Django, as a request that reaches the view does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.urls import path
from django.views.decorators.http import require_GET
from django_calls import hello as django_view
from django_calls import project
from tables import each
from werkzeug.routing import Map
from werkzeug.routing import Rule as URLRule
from werkzeug.test import Client
from werkzeug.wrappers import Request, Response

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware

Ask = Callable[[str, str], int]


@contextmanager
def with_werkzeug(limiter: Limiter) -> Iterator[Ask]:
    urls = Map([URLRule("/items/<item>", endpoint="item", methods=["GET"])])

    @Request.application
    def site(request: Request) -> Any:
        urls.bind_to_environ(request.environ).match()
        return Response()

    views = {"item": lambda item: Response()}
    client = Client(WSGIMiddleware(site, limiter=limiter, url_map=urls, views=views))
    yield lambda method, where: client.open(where, method=method).status_code


@contextmanager
def with_django(limiter: Limiter) -> Iterator[Ask]:
    view = require_GET(django_view)
    with project({"limiter": limiter}, path("items/<item>", view, name="item")) as served:
        yield lambda method, where: served.ask(where, method=method).status_code


@each("serve", [with_werkzeug, with_django])
@each("match", [{"endpoint": "/items/{item}"}, {"view": "item"}])
def test_a_405_counts_under_the_template_of_its_path(serve: Any, match: Any) -> None:
    """By the rule of the endpoint or of the view, with the parameters of the path."""
    rule = Rule(name="item", limits="1/minute", match=match, key=["endpoint", "path:item"])
    with serve(Limiter([rule], clock=ManualClock(1_000_000.0))) as ask:
        assert [ask("DELETE", "/items/7"), ask("PUT", "/items/7"), ask("GET", "/items/7")] == [405, 429, 429]
        assert [ask("GET", "/items/8"), ask("DELETE", "/items/8"), ask("DELETE", "/nowhere")] == [200, 429, 404]
