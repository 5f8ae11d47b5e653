"""Paths, hosts and regions have one form in keys, lists, ``match`` and tables, with a middleware and without."""

from __future__ import annotations

from typing import Any

from tables import expect_error

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.keys.features import INVALID
from ratelimit_mw.keys.forms import normalize_host


def allowed(limiter: Limiter, *requests: dict[str, Any]) -> list[bool]:
    return [limiter.hit(features).allowed for features in requests]


def test_spellings_share_a_count() -> None:
    """Slashes of a path do not matter, nor case, port and final dot of a host. All invalid values have one count."""
    for key, spellings in (
        ("path", [["/login", "/login/", "//login", "login"], ["/login\n", "/x/../login"], ["/Login"]]),
        (
            "host",
            [["a.example", "A.example.:80"], ["[::1]:80", "[0:0::1]"], ["a b", "a,b", "a" * 300, "[::1", "a:b"]],
        ),
        ("region", [["AT", "at", b"at"], ["\u00e9" * 400, "\u00e8" * 500]]),
        ("region as raw", [["AT", "AT"], ["at"]]),
    ):
        limiter = Limiter([Rule(limits="1/minute", key=[key])])
        for same in spellings:
            requests = [{key.partition(" ")[0]: value} for value in same]
            assert allowed(limiter, *requests) == [True] + [False] * (len(same) - 1), same
    assert normalize_host(None) is normalize_host(7) is INVALID


def test_a_rule_matches_a_host_in_any_spelling() -> None:
    """A host that is invalid may be any host, so the rule applies."""
    for host, applies in (
        ("example.com", True),
        ("EXAMPLE.com.:8000", True),
        ("shop.example.com", False),
        ("[2001:DB8:0:0::1]:80", True),
        (INVALID, True),
        ("example.com, other", True),
        ("", False),
    ):
        limiter = Limiter([Rule(limits="1/minute", key=[], match={"host": ["Example.COM.", "[2001:db8::1]"]})])
        assert bool(limiter.match({"host": host}).rules) == applies


def test_a_pattern_that_is_no_host_is_an_error() -> None:
    """The error shows the expected form."""
    for host in ("example.com:80", "[::1]:80", "a b", "*.", "*", "[::g]", "é.example", 7, ""):
        expect_error(r"match\.host: expected a host without port", Rule, limits="1/minute", match={"host": host})


def test_an_ambiguous_path_is_denied_in_one_reading_and_allowed_in_all() -> None:
    """The deny list holds for a path that may be on it, and the allow list for one that must be."""
    rules = [{"limits": "1/minute", "key": []}]
    lists = {"allow": {"path": ["/health/"]}, "deny": {"path": ["/admin"]}}
    limiter = Limiter.from_settings({"rules": rules, "lists": lists})
    denied = {path: limiter.hit({"path": path}).denied for path in ("/admin/", "/admin\n", "/x/../health", "/health")}
    assert denied == {"/admin/": True, "/admin\n": True, "/x/../health": False, "/health": False}
    static = ("/static/a", "/static/a%2Fb", "//static/a/", "/static/../login", "/static\\..\\login", "/static/a")
    for given in ({"lists": {"allow": {"path": ["/static/**"]}}}, {"exempt": ["/static/**"]}):
        limiter = Limiter.from_settings({"rules": rules, **given})
        requests = [{"path": path} for path in static]
        assert allowed(limiter, *requests) == [True, True, True, False, False, True]


REGIONS = {"AT": True, "at": True, b"at": True, " At": False, "\uff21\uff34": False}


def test_spellings_of_a_region_share_its_limits() -> None:
    """It holds in keys, ``match`` and deny lists; keys show capitals. Allow lists and tables take exact codes."""
    for region, is_exact in REGIONS.items():
        rules = [
            Rule(name="key", limits="9/minute", key=["region"]),
            Rule(name="match", limits="1/minute", key=[], match={"region": ["At"]}),
            Rule(name="table", limits="2/minute", key=[], per={"region": {"at": "5/minute"}}),
        ]
        by_rule = {each.rule: each for each in Limiter(rules).hit({"region": region}).decisions}
        assert (by_rule["key"].client, by_rule["table"].limit) == ("region=AT", 5 if is_exact else 2), region
        assert "match" in by_rule, region
        for kind, is_listed in (("allow", is_exact), ("deny", True)):
            lists = Limiter.from_settings({"rules": [{"limits": "9/minute"}], "lists": {kind: {"region": ["at"]}}})
            verdict = lists.hit({"region": region})
            assert (verdict.allowed, len(verdict.decisions)) == (kind == "allow", 0 if is_listed else 1), region
