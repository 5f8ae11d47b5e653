"""``email:form:username``: the email address in a named field, in one spelling."""

from __future__ import annotations

from typing import Any

import pytest
from calls import ask_wsgi
from tables import each

from ratelimit_mw import ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.keys.parts import checked_part
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi import RateLimitMiddleware


def served(**rule: Any) -> Any:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"ok"]

    limiter = Limiter([Rule(name="login", limits="2/minute", **rule)], clock=ManualClock(1_000_000.0))
    return RateLimitMiddleware(app, limiter=limiter)


SPELLINGS = ("ann@x.example", "Ann@X.example", "ann@x.example.")


@each(
    ("part", "requests"),
    [
        ("email:form:username", [{"data": {"username": text}} for text in SPELLINGS]),
        ("email:json:user.mail", [{"json": {"user": {"mail": text}}} for text in SPELLINGS]),
        ("email:field:mail", [{"data": {"mail": SPELLINGS[0]}}, *({"json": {"mail": text}} for text in SPELLINGS[1:])]),
        ("email:header:x-mail", [{"headers": {"X-Mail": text}} for text in SPELLINGS]),
    ],
)
def test_all_spellings_in_a_field_have_one_count(part: str, requests: list[Any]) -> None:
    """A request without the field is not limited."""
    app = served(key=[part])
    assert [ask_wsgi(app, method="POST", **request).status_code for request in requests] == [200, 200, 429]
    assert [ask_wsgi(app, method="POST").status_code for _ in range(3)] == [200] * 3


def test_an_invalid_body_is_invalid() -> None:
    """A body that cannot be read does not evade the rule."""
    app = served(key=["email:form:username"])
    broken = {"content": b"\xff", "headers": {"content-type": "application/octet-stream"}}
    assert [ask_wsgi(app, method="POST", **broken).status_code for _ in range(3)] == [200, 200, 429]


def test_limits_by_value_match_any_spelling() -> None:
    """Tables and lists of the settings have every spelling."""
    app = served(key=["email:form:username"], per_key={"Ann@B.example": ["3/minute"]})
    sent = [ask_wsgi(app, method="POST", data={"username": "ann@b.example"}).status_code for _ in range(4)]
    assert sent == [200, 200, 200, 429]


def test_a_secret_digests_the_address() -> None:
    """The addresses in all fields are personal."""
    settings = load_settings(
        {"secret": "correct horse battery staple", "rules": [{"key": "email:form:username", "limits": "1/minute"}]}
    )
    limiter = Limiter.from_settings(settings)
    keys = limiter.rules.by_name["rule-1"].key.build({"email:form:username": "ann@b.example"})
    assert keys is not None
    assert "ann" not in keys


@each("text", ["email:", "email:username", "email:email", "email:form:", "email:nope:x"])
def test_other_names_are_errors(text: str) -> None:
    """A field needs the place where it is."""
    with pytest.raises(ConfigError, match="expected a feature"):
        checked_part(text)
