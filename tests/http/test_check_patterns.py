"""Patterns of real applications: checks after a form is valid, keys set by decorators, outcomes that a view finds."""

from __future__ import annotations

import functools
from typing import Any

import flask
import pytest
from calls import ask as ask_asgi
from django import forms
from django.http import HttpResponse
from django.urls import path
from django_calls import project
from django_calls import still as django_still
from flask_calls import app_of, ask, still
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette_apps import application
from tables import each

from ratelimit_mw import ConfigError, RateLimitExceeded
from ratelimit_mw.django import acheck
from ratelimit_mw.django import check as django_check
from ratelimit_mw.flask import check, limit, usage
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware

SETTINGS: dict[str, Any] = {
    "rules": [
        {"name": "post", "key": ["user|ip"], "limits": "2/minute", "match": {"view": ""}},
        {"name": "account", "key": ["account"], "limits": "2/minute", "match": {"view": ""}},
        {"name": "login", "key": ["email", "ip"], "limits": "2/minute", "match": {"view": ""}},
        {"name": "bounced", "limits": "2/minute", "count_when": {"marked": True}},
    ]
}


class Post(forms.Form):
    """A form of a forum."""

    text = forms.CharField(max_length=9)


@each("is_async", [False, True])
def test_only_valid_forms_count(is_async: bool) -> None:
    """The view checks after validation, and shows the rejection as an error of the form."""

    def post(request: Any) -> HttpResponse:
        form = Post(request.GET)
        if form.is_valid():
            try:
                django_check(request, "post")
            except RateLimitExceeded as error:
                form.add_error(None, f"wait {error.verdict.retry_after:.0f} s")
        return HttpResponse("ok" if form.is_valid() else str(form.errors.get_json_data()))

    async def apost(request: Any) -> HttpResponse:
        form = Post(request.GET)
        if form.is_valid():
            try:
                await acheck(request, "post")
            except RateLimitExceeded as error:
                form.add_error(None, f"wait {error.verdict.retry_after:.0f} s")
        return HttpResponse("ok" if form.is_valid() else str(form.errors.get_json_data()))

    with project(django_still(SETTINGS), path("", apost if is_async else post), is_async=is_async) as served:
        sent = [served.ask(f"/?text={text}").content.decode() for text in ("", "far too long", "a", "b", "c")]
    assert sent[2:4] == ["ok", "ok"]
    assert "'__all__': [{'message': 'wait 60 s'" in sent[4]


def with_account(view: Any) -> Any:
    """Find the account of a request, as decorators of applications do."""

    @functools.wraps(view)
    def found(*args: Any, **kwargs: Any) -> Any:
        flask.g.account = flask.request.headers["X-Account"]
        return view(*args, **kwargs)

    return found


def test_a_decorator_sets_the_key() -> None:
    """The view passes what the decorator has set, or calls a limited helper whose feature reads it."""

    @limit("3/minute", key=["account"])
    def send() -> str:
        return "sent"

    @with_account
    def view() -> str:
        check("account", account=flask.g.account)
        return "ok"

    app = app_of(
        still(SETTINGS),
        {"/check": view, "/helper": with_account(lambda: send())},
        features={"account": lambda request: flask.g.get("account")},
    )
    for place, most in (("/check", 2), ("/helper", 3)):
        for account in ("ann", "bob"):
            sent = [ask(app, place, headers={"X-Account": account}).status_code for _ in range(most + 1)]
            assert sent == [200] * most + [429]


def test_a_function_of_the_response_deducts() -> None:
    """``deduct_when`` of other packages: the view marks what counts, for any reason."""

    def view() -> str:
        text = flask.request.args["text"]
        if "spam" in text:
            flask.g.ratelimit["bounced"].count()
        return text

    app = app_of(still(SETTINGS), {"/": view})
    sent = [ask(app, f"/?text={text}").status_code for text in ("a", "spam", "b", "spam", "c")]
    assert sent == [200, 200, 200, 200, 429]


def test_failed_logins_are_forgotten_after_a_successful_one() -> None:
    """One line forgets them, under every spelling of the address."""

    def login() -> tuple[str, int]:
        email, right = flask.request.args["email"], "right" in flask.request.args
        if not right:
            check("login", email=email)
            return "wrong", 401
        check.reset("login", email=email)
        return "welcome", 200

    app = app_of(still(SETTINGS), {"/": login})
    tries = ("a@b.example", "a@b.example", "a@b.example", "A@B.example&right", "a@b.example")
    assert [ask(app, f"/?email={text}").status_code for text in tries] == [401, 401, 429, 200, 401]


@each("key", [["form:email"], ["form:email", "ip"]])
def test_a_successful_login_keeps_the_guesses_of_a_field_that_occurs_twice(key: list[str]) -> None:
    """With it, an attacker with an account could reset the guesses at another one."""
    failed = {"name": "guess", "key": key, "limits": "3/minute", "count_when": {"marked": True}}

    def login() -> str:
        if flask.request.form["right"] == "yes":
            flask.g.ratelimit["guess"].reset()
            check.reset("guess")
        else:
            flask.g.ratelimit["guess"].count()
        return "done"

    app = app_of(still({"rules": [failed]}), {"/": login})
    data = [{"email": ["x", "ann"], "right": "no"}, {"email": ["x", "eve"], "right": "yes"}]
    sent = [ask(app, method="POST", data=each).status_code for each in data * 4]
    assert sent == [200] * 5 + [429] * 3


def test_a_rejection_by_a_check_is_a_429_where_two_rules_count_outcomes() -> None:
    """429 is no outcome that counts, and the headers show the rejection all the same."""
    failed = {"limits": "2/minute", "count_when": {"status": 401}}
    rules = [{"name": "guess", **failed, "limits": "9/minute"}, {"name": "login", **failed, "match": {"view": ""}}]

    def login() -> tuple[str, int]:
        check("login")
        return "wrong", 401

    app = app_of(still({"rules": rules}), {"/": login})
    responses = [ask(app) for _ in range(4)]
    assert [response.status_code for response in responses] == [401, 401, 429, 429]
    assert responses[-1].headers["RateLimit"].startswith('"login";r=0')


def test_a_check_of_a_rule_that_an_outer_middleware_decided() -> None:
    """``reset`` and ``usage`` see the counts of the limiter that decided the rule, even in memory."""
    by_ip = {"name": "login", "limits": "3/minute", "match": {"path": "/"}}
    settings: Any = {"rules": [by_ip, {"name": "api", "key": ["user"], "limits": "9/minute"}]}

    def login() -> str:
        left = usage("login")["login"]["remaining"]
        if left == 0:
            check.reset("login")
        return str(left)

    app = app_of(still(settings), {"/": login})
    app.wsgi_app = WSGIMiddleware(app.wsgi_app, settings=settings)  # type: ignore[method-assign]
    assert [ask(app).text for _ in range(5)] == ["2", "1", "0", "2", "1"]


def test_a_limited_function_inside_of_a_view_keeps_its_count() -> None:
    """Each request makes another function. It has the rule of the earlier one, and no rules pile up."""

    def view() -> str:
        @limit("5/hour", name="many")
        @limit("2/minute", name="few")
        def send() -> str:
            return "sent"

        return send()

    limiter = still(SETTINGS)
    app = app_of(limiter, {"/": view})
    assert [ask(app).status_code for _ in range(4)] == [200, 200, 429, 429]
    assert len(limiter.rules.rules) == len(SETTINGS["rules"]) + 2


def test_a_function_inside_of_an_async_view_keeps_its_count() -> None:
    """The same holds where the function is awaited."""

    async def view(_: Any) -> PlainTextResponse:
        @limit("2/minute")
        async def send() -> PlainTextResponse:
            return PlainTextResponse("sent")

        return await send()

    app = application([Route("/", view)], limiter=still())
    assert [ask_asgi(app).status_code for _ in range(3)] == [200, 200, 429]


def test_a_function_inside_of_a_view_has_one_limit() -> None:
    """Another limit in each request would be no limit, so it is an error that says what to write."""

    def view() -> str:
        most, name = flask.request.args["most"], flask.request.args.get("name")
        return limit(f"{most}/minute", name=name)(lambda: "sent")()

    app = app_of(views={"/": view})
    app.testing = True
    assert ask(app, "/?most=5").status_code == 200
    with pytest.raises(
        ConfigError, match=r"@limit on .*view.<locals>.<lambda>: its options change .* outside the view"
    ):
        ask(app, "/?most=6")
    sent = [ask(app, f"/?most={most}&name=of-{most}").status_code for most in "121212"]
    assert sent == [200, 200, 429, 200, 429, 429]
