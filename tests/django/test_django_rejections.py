"""The responses to rejections: the project's own ones, and those of code outside its views."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpResponse
from django.template.response import SimpleTemplateResponse
from django.test import Client
from django.urls import path
from django_calls import MIDDLEWARE, one_rule, project, raise_own
from tables import each


@each("is_async", [False, True])
def test_a_rejection_in_other_middleware_is_a_429(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Django makes a 500 of an error in middleware. The response to the client is that of a rejection."""

    def raising(get_response: Any) -> Any:
        def middleware(request: Any) -> Any:
            raise_own()

        return middleware

    monkeypatch.setattr("django_calls.raising", raising, raising=False)
    with project(one_rule(), is_async=is_async, middleware=[*MIDDLEWARE, "django_calls.raising"]) as served:
        response = served.ask()
    assert (response.status_code, response.headers["RateLimit"][:9]) == (429, '"own";r=0')


def test_an_error_below_middleware_with_a_request_of_its_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request has nothing of this package. The error is that of the view."""

    def failing(request: Any) -> Any:
        raise LookupError("of the view")

    def replacing(get_response: Any) -> Any:
        return lambda request: get_response(WSGIRequest({**request.META}))

    monkeypatch.setattr("django_calls.replacing", replacing, raising=False)
    middleware = [*MIDDLEWARE, "django_calls.replacing"]
    with (
        project(one_rule(), path("", failing), middleware=middleware),
        pytest.raises(LookupError, match="of the view"),
    ):
        Client().get("/")


BACKEND = "django.template.backends.django.DjangoTemplates"
LOADER = ("django.template.loaders.locmem.Loader", {"busy.html": "wait {{ time }} s"})
TEMPLATES = [{"BACKEND": BACKEND, "OPTIONS": {"loaders": [LOADER]}}]


async def respond_later(request: Any, verdict: Any) -> HttpResponse:
    return HttpResponse("later", status=429)


def render_later(request: Any, verdict: Any) -> HttpResponse:
    return SimpleTemplateResponse("busy.html", {"time": verdict.retry_after}, status=429)


@each("is_async", [False, True])
def test_your_own_page_may_have_several_forms(is_async: bool) -> None:
    """A coroutine, a template that is not rendered, and None for the page of this package. Another value is a 500."""
    expected: dict[Any, tuple[int, bytes]] = {
        respond_later: (429, b"later"),
        render_later: (429, b"wait 60.0 s"),
        (lambda *_: None): (429, b'{"type"'),
        (lambda *_: "busy"): (500, b""),
    }
    for function, (status, start) in expected.items():
        options = {"limiter": one_rule("1/minute"), "rejection": function}
        with project(options, is_async=is_async, TEMPLATES=TEMPLATES) as served:
            response = [served.ask() for _ in range(2)][-1]
        assert (response.status_code, response.content[: len(start)]) == (status, start), function


@each("is_async", [False, True])
def test_a_page_that_fails_keeps_no_slot(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request has ended all the same, when the page for a rejection of other middleware fails."""
    monkeypatch.setattr("django_calls.failing", lambda get_response: lambda request: raise_own(), raising=False)
    limiter = one_rule("1 concurrent")
    options = {"limiter": limiter, "rejection": lambda request, verdict: 1 / 0}
    with project(options, is_async=is_async, middleware=[*MIDDLEWARE, "django_calls.failing"]) as served:
        assert served.statuses(times=2) == [500, 500]
    assert limiter.peek({"ip": "192.0.2.7"}).allowed
