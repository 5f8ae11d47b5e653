"""The project's own pages of a rejection: ``handler429`` and the template ``429.html``, sync and async."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.core.checks import run_checks
from django.http import HttpRequest, HttpResponse
from django.template.response import SimpleTemplateResponse
from django.urls import path
from django_calls import MIDDLEWARE, hello, one_rule, project

from ratelimit_mw import ConfigError, Limiter, RateLimitExceeded, Rule
from ratelimit_mw.django import RateLimitMiddleware
from ratelimit_mw.testing import ManualClock

both = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
BROWSER = {"headers": {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}}
PAGE = "{{ request.path }}: {{ exception }}; {{ retry_after }}; {{ rejected_by.0.rule }}"


def templates(**files: str) -> list[dict[str, Any]]:
    """Return the setting for these templates, each with ``.html`` at the end of its name."""
    named = {f"{name.removeprefix('_')}.html": text for name, text in files.items()}
    processors = ["django.template.context_processors.request"]
    loaders = [("django.template.loaders.locmem.Loader", named)]
    backend = "django.template.backends.django.DjangoTemplates"
    return [{"BACKEND": backend, "OPTIONS": {"loaders": loaders, "context_processors": processors}}]


def page_of(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return a page that shows what a handler receives."""
    assert isinstance(exception, RateLimitExceeded)
    asyncio_is_free()
    text = f"{request.path}: {exception.verdict.retry_after:g}"
    return HttpResponse(text, status=429)


def asyncio_is_free() -> None:
    """A handler that is not async runs in a thread without an event loop: it may query the database."""
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


async def apage_of(request: HttpRequest, exception: Exception) -> HttpResponse:
    await asyncio.sleep(0)
    return HttpResponse("async", status=429)


def template_response(request: HttpRequest, exception: Exception) -> HttpResponse:
    return SimpleTemplateResponse("busy.html", {"time": 5}, status=429)


def raising(request: HttpRequest) -> HttpResponse:
    """Reject by a limiter of its own."""
    own = Limiter([Rule(name="own", limits="1/hour")], clock=ManualClock(999_960.0))
    own.hit({"ip": "192.0.2.7"})
    own.hit({"ip": "192.0.2.7"}).raise_for_limit()
    return HttpResponse("never")


@both
def test_a_template_is_the_429_of_browsers(is_async: bool) -> None:
    """Clients that prefer another form than HTML receive the default. The headers are those of every rejection."""
    with project(one_rule("1/minute"), is_async=is_async, TEMPLATES=templates(_429=PAGE)) as served:
        served.ask()
        page = served.ask(**BROWSER)
        expected = "/: rejected by api (1/minute): retry after 60 s; 60; api"
        assert (page.status_code, page.content.decode()) == (429, expected)
        assert (page["content-type"], page["cache-control"]) == ("text/html; charset=utf-8", "no-store")
        assert (page["retry-after"], page["ratelimit"]) == ("60", '"api";r=0;t=60')
        for accept in ("application/json", "*/*", "", "text/plain"):
            assert b"Too Many Requests" in served.ask(headers={"accept": accept}).content


@both
def test_a_template_renders_a_rejection_of_a_view(is_async: bool) -> None:
    """RateLimitExceeded in a view gives the same page."""
    with project(None, path("", raising), is_async=is_async, TEMPLATES=templates(_429=PAGE)) as served:
        assert served.ask(**BROWSER).content.startswith(b"/: rejected by own (1/hour): retry after ")


@both
@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (page_of, b"/: 60"),
        (f"{__name__}.page_of", b"/: 60"),
        (apage_of, b"async"),
        (template_response, b"wait 5 s"),
    ],
)
def test_handler429_builds_every_429(is_async: bool, handler: Any, expected: bytes) -> None:
    """It is a function or its dotted path, sync or async, and takes the place of the template, for JSON too."""
    given = {"TEMPLATES": templates(_429="template", busy="wait {{ time }} s")}
    with project(one_rule("1/minute"), is_async=is_async, handler429=handler, **given) as served:
        served.ask()
        for accept in ("text/html", "application/json"):
            page = served.ask(headers={"accept": accept})
            assert (page.status_code, page.content, page["retry-after"]) == (429, expected, "60")


@both
def test_handler429_receives_the_rejection_of_a_view(is_async: bool) -> None:
    """The exception is the one that the view has raised."""
    with project(None, path("", raising), is_async=is_async, handler429=page_of) as served:
        page = served.ask()
    assert (page.status_code, page.content) == (429, b"/: 3600")


@both
def test_other_rejections_have_no_page(is_async: bool) -> None:
    """A client on a deny list receives the default 403."""
    limits = {"rules": [], "lists": {"deny": {"ip": ["192.0.2.0/24"]}}}
    with project(limits, is_async=is_async, handler429=page_of, TEMPLATES=templates(_429="page")) as served:
        denied = served.ask(**BROWSER)
    assert (denied.status_code, b"<h1>Forbidden" in denied.content) == (403, True)


@both
def test_the_function_of_the_settings_comes_first(is_async: bool) -> None:
    """``rejection`` in RATELIMIT_MW takes the place of ``handler429``."""
    options = {"limiter": one_rule("1/minute"), "rejection": lambda request, verdict: HttpResponse("own", status=429)}
    with project(options, is_async=is_async, handler429=page_of) as served:
        served.ask()
        assert served.ask().content == b"own"


@both
def test_a_handler_that_returns_no_response_allows_no_request(is_async: bool) -> None:
    """None keeps the default. Another value, and an error in the template, are a 500, as in Django's handlers."""
    for result, status in ((None, 429), ("busy", 500)):
        handler = lambda request, exception, result=result: result  # noqa: E731
        with project(one_rule("1/minute"), is_async=is_async, handler429=handler) as served:
            assert served.statuses(times=2) == [200, status]
    with project(one_rule("1/minute"), is_async=is_async, TEMPLATES=templates(_429="{% url 'nope' %}")) as served:
        assert served.statuses(times=2, **BROWSER) == [200, 500]


@both
def test_a_failing_handler_keeps_no_slot(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the page of a rejection in other middleware fails, the request has ended all the same."""

    def failing(get_response: Any) -> Any:
        return raising

    def broken(request: HttpRequest, exception: Exception) -> HttpResponse:
        raise ValueError("broken")

    monkeypatch.setattr("django_calls.failing", failing, raising=False)
    limiter = one_rule("1 concurrent")
    with project(
        limiter, is_async=is_async, handler429=broken, middleware=[*MIDDLEWARE, "django_calls.failing"]
    ) as served:
        assert served.statuses(times=2) == [500, 500]
    assert limiter.peek({"ip": "192.0.2.7"}).allowed


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        ("nowhere.page", "urls.handler429: expected a function, or its dotted path: "),
        (f"{__name__}.absent", "urls.handler429: expected a function, or its dotted path: "),
        (5, "urls.handler429: expected a function, or its dotted path: "),
        (raising, "urls.handler429: expected a function of the request and the exception; got raising("),
    ],
)
def test_a_handler_that_cannot_work_stops_the_start(handler: Any, message: str) -> None:
    """The middleware does not start, and the system check reports the same message."""
    with project(handler429=handler):
        assert_stops(message)


def test_a_template_with_a_mistake_stops_the_start() -> None:
    """A template that cannot be compiled is an error at the start."""
    with project(TEMPLATES=templates(_429="{% if %}")):
        assert_stops("429.html: ", "Unexpected end of expression in if tag.")  # Django 6 puts the template between them


def assert_stops(message: str, end: str = "") -> None:
    with pytest.raises(ConfigError) as error:
        RateLimitMiddleware(hello)
    assert str(error.value).startswith(message)
    assert str(error.value).endswith(end)
    [found] = [each for each in run_checks() if each.id.startswith("ratelimit_mw")]
    assert (found.id, found.msg) == ("ratelimit_mw.E001", str(error.value))


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("{% extends 'base.html' %}", "429.html cannot be rendered: TemplateDoesNotExist: base.html"),
        ("{% url 'nope' %}", "429.html cannot be rendered: NoReverseMatch: "),
        ("{% csrf_token %}{{ request.user }}{{ exception }}{{ retry_after }}", None),
    ],
)
def test_a_template_that_cannot_be_rendered_is_a_warning(page: str, problem: str | None) -> None:
    """The system check renders the template once, without the context processors."""
    with project(TEMPLATES=templates(_429=page)):
        found = [each for each in run_checks() if each.id.startswith("ratelimit_mw")]
    assert [(each.id, each.msg[: len(problem or "")]) for each in found] == [("ratelimit_mw.W008", problem)] * (
        problem is not None
    )
