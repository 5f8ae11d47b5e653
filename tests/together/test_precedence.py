"""The precedence of rules, decorators, overrides and lists is the same in every framework and in the commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from precedence_sites import OfDjango, Site, site

from ratelimit_mw.testing import limits_off

ALLOWED, DENIED = "203.0.113.7", "203.0.113.9"
REQUESTS = {
    ("GET", "/"): ["site 100"],
    ("GET", "/nowhere"): ["site 100"],
    ("POST", "/login"): ["site 100", "login 90"],
    ("GET", "/report"): ["site 100", "report 70"],
    ("HEAD", "/report"): ["site 100", "report 70"],
    ("GET", "/health"): [],
    ("GET", "/status"): ["status 50"],
    ("GET", "/api/items/7"): ["site 100", "items 80"],
    ("POST", "/api/items/7"): ["site 100", "items 80", "item 60"],
    ("GET", "/api/items/7/parts"): ["site 100", "items 80"],
    ("OPTIONS", "/report"): [],  # Flask and Starlette respond automatically; Django calls the function
}
"""Which limits apply to each request, and with which amounts."""


@pytest.fixture(params=["starlette", "fastapi", "flask", "django", "async django"])
def served(request: pytest.FixtureRequest) -> Iterator[Site]:
    with site(request.param) as running:
        yield running


@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_the_behaviour_matches_the_explain_command(served: Site, method: str, path: str) -> None:
    """File rules come first, then decorators with their overrides, minus exemptions. The command agrees."""
    expected = REQUESTS[method, path]
    if method == "OPTIONS" and isinstance(served, OfDjango):
        expected = REQUESTS["GET", path]
    assert served.respond(method, path)[1] == expected
    assert served.explain(method, path) == expected


def test_all_rules_are_listed(served: Site) -> None:
    """The list shows the source and place of each rule, the exempt views and the access lists."""
    lines = [" ".join(line.split()) for line in served.list_rules().splitlines()]
    starts = ["site settings all ip 100", "login settings POST /login ip 90", "items settings /api/items/** ip 80"]
    starts += [
        "report @limit and settings /report ip 70",
        "status @limit /status ip 50",
        "item @limit POST /api/items/{number} ",
    ]
    for start in starts:
        assert [line for line in lines if line.startswith(start)], start
    assert {"exempt: /health from every rule", "exempt: /status from site"} <= set(lines)
    assert "allow list: ip; takes precedence over the deny list and all rules" in lines
    assert "deny list: ip; takes precedence over all rules" in lines


def test_lists_take_precedence_over_all_rules(served: Site) -> None:
    """An allowed client is never limited. A denied client is rejected, even by exempt views. Allow precedes deny."""
    assert served.respond("GET", "/report", ALLOWED) == (200, [])
    assert served.respond("GET", "/report", DENIED) == (403, [])
    assert served.respond("GET", "/health", DENIED) == (403, [])


def test_limits_off_takes_precedence_over_lists(served: Site) -> None:
    """In limits_off() every request is served without headers."""
    with limits_off():
        assert served.respond("GET", "/report", DENIED) == (200, [])
        assert served.respond("GET", "/report") == (200, [])
