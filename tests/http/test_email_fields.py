"""``email:form:username``: the email address in a named field, in one spelling."""

from __future__ import annotations

import pytest
from calls import ask_wsgi
from tables import each
from wsgi_calls import listing

from ratelimit_mw import ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.keys.parts import checked_part
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi import RateLimitMiddleware


def test_limits_by_value_match_any_spelling() -> None:
    """Tables and lists of the settings have every spelling."""
    rule = Rule(limits="2/minute", key=["email:form:username"], per_key={"Ann@B.example": ["3/minute"]})
    app = RateLimitMiddleware(listing, limiter=Limiter([rule], clock=ManualClock(1_000_000.0)))
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
