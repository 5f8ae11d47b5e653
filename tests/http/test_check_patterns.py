"""Patterns of real applications: checks after a form is valid, keys set by decorators, outcomes that a view finds."""

from __future__ import annotations

import functools
from typing import Any

import flask
import pytest
from django import forms
from django.http import HttpResponse
from django.urls import path
from django_calls import project
from django_calls import still as django_still
from flask_calls import app_of, ask, still

from ratelimit_mw import RateLimitExceeded
from ratelimit_mw.django import acheck
from ratelimit_mw.django import check as django_check
from ratelimit_mw.flask import check, limit

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


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
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
