"""Rules match requests, list the features they need, and reject invalid options with their place."""

import copy
import pickle
from typing import Any

import pytest
from tables import expect_error

from ratelimit_mw import ConfigError, Limiter, Quota, Rule
from ratelimit_mw.algorithms import Algorithm
from ratelimit_mw.algorithms.bucket import Gcra
from ratelimit_mw.decision import BanTerms
from ratelimit_mw.http.features import FeatureReader
from ratelimit_mw.http.functions import CheckedFunctions
from ratelimit_mw.http.headers import Memo
from ratelimit_mw.keys.features import INVALID
from ratelimit_mw.keys.parts import part_of
from ratelimit_mw.operations.overview import Overview, row_of
from ratelimit_mw.rules import ruleset
from ratelimit_mw.rules.access_lists import AccessLists
from ratelimit_mw.rules.marks import Destination, ViewMarks
from ratelimit_mw.rules.plan import Plan
from ratelimit_mw.rules.routed import PathPatterns
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi.exchange import WSGIRequest


def rules_for(rules: list[Rule], method: str = "GET", path: str = "/", host: str = "") -> list[str]:
    return [rule.name for rule in RuleSet(rules).plan(method, path, host).rules]


def named(**matches: dict[str, Any]) -> list[Rule]:
    return [Rule(name=name, limits="1/minute", match=match) for name, match in matches.items()]


# -- matching ----------------------------------------------------------------------------------------------

SHOP = named(
    every={},
    login={"path": "/login", "methods": ["POST"]},
    api={"path": "/api/**"},
    items={"path": ["/api/items/{id}", "/items"], "methods": ["get", "PUT"]},
    writes={"methods": ["POST", "PUT", "PATCH", "DELETE"]},
    preflight={"methods": "OPTIONS"},
    purge={"methods": ["PURGE"]},
)


def test_all_matching_rules_apply_in_their_order() -> None:
    """Path and method match for each rule separately. GET includes HEAD."""
    for method, path, expected in (
        ("GET", "/", ["every"]),
        ("GET", "/login", ["every"]),
        ("POST", "/login", ["every", "login", "writes"]),
        ("post", "/login/", ["every", "login", "writes"]),
        ("GET", "/api", ["every", "api"]),
        ("GET", "//api/items/7", ["every", "api", "items"]),
        ("HEAD", "/items", ["every", "items"]),
        ("PUT", "/items", ["every", "items", "writes"]),
        ("DELETE", "/items", ["every", "writes"]),
        ("OPTIONS", "/api/items/7", ["every", "api", "preflight"]),
        ("options", "/", ["every", "preflight"]),
        ("PURGE", "/", ["every", "purge"]),
        ("BREW", "/api", ["every", "api"]),
        ("", "", ["every"]),
    ):
        assert rules_for(SHOP, method, path) == expected
    with pytest.raises(TypeError, match="'bytes'"):  # which would match no method
        rules_for(SHOP, b"POST")  # type: ignore[arg-type]


def test_a_method_that_the_framework_answers_matches_only_by_name() -> None:
    """A view says that its framework responds to OPTIONS. Other methods of the view are not affected."""
    rules, to = RuleSet(SHOP), Destination(marks=ViewMarks(answers_options=True))
    names = [[rule.name for rule in rules.plan(method, "/", "", to).rules] for method in ("OPTIONS", "options", "GET")]
    assert names == [["preflight"], ["preflight"], ["every"]]


def test_any_method_may_be_named() -> None:
    """A custom method is valid, unless it looks like a typo of a standard one."""
    for method in ("PROPFIND", "PROPPATCH", "REPORT", "SEARCH", "LOCK", "M-SEARCH", "X_Y", "brew"):
        assert rules_for(named(r={"methods": method}), method.upper()) == ["r"]


def test_the_same_rules_are_the_same_plan() -> None:
    """Requests with the same rules share one compiled plan, for any way to it."""
    rules = RuleSet(SHOP)
    assert rules.plan("GET", "/a") is rules.plan("BREW", "/b") is rules.plan("GET", "/a")
    assert rules.plan("GET", "/a") is not rules.plan("POST", "/a")
    assert rules.plan_for_features({"method": "POST", "path": "/a"}) is rules.plan("POST", "/a")


def test_the_match_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache holds a bounded number of paths and methods, never long paths, and results stay correct."""
    monkeypatch.setattr(ruleset, "_MAX_CACHED", 100)
    rules, matched = RuleSet(SHOP), matches_of(monkeypatch)
    long = "/api/" + "x" * 300
    requests = [*(("GET", f"/api/{i}") for i in range(150)), *((f"M{i}", "/api") for i in range(100))]
    for each in (requests, [("GET", long)], requests[::-1]):
        matched.clear()
        for method, path in each:
            assert [rule.name for rule in rules.plan(method, path).rules] == ["every", "api"]
    assert 0 < len(requests) - len(matched) <= 100
    matched.clear()
    for _ in range(2):
        rules.plan("GET", long)
    assert matched == [long] * 2


def matches_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets each path that is compared with the patterns, because no cache has its request."""
    found: list[str] = []
    match = PathPatterns.match
    monkeypatch.setattr(PathPatterns, "match", lambda own, path, *more: found.append(path) or match(own, path, *more))
    return found


def test_the_plan_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent patterns have as many plans as combinations. The cache holds a bounded number of them."""
    monkeypatch.setattr(ruleset, "_MAX_CACHED", 100)
    monkeypatch.setattr(Memo, "most", 100)
    rules = RuleSet(Rule(limits="1/minute", match={"path": f"/**/{i}/**"}) for i in range(8))
    needs, adapter = {part_of("ip"): ConfigError}, {"user": lambda request: None}
    reader = FeatureReader(needs, Settings(), CheckedFunctions({}), adapter)
    request = WSGIRequest({"REMOTE_ADDR": "192.0.2.7"})
    plans: list[tuple[str, Plan]] = []
    for chosen in range(1 << 8):
        names = [i for i in range(8) if chosen >> i & 1]
        path = "/" + "/".join(map(str, names))
        plan = rules.plan("GET", path)
        assert [rule.name for rule in plan.rules] == [f"rule-{i + 1}" for i in names]
        assert reader.read(plan, request) == ({"ip": "192.0.2.7"} if names else {})
        plans.append((path, plan))
    assert 0 < sum(rules.plan("POST", path) is plan for path, plan in reversed(plans)) <= 100


HOSTS = named(
    one={"host": "a.example"},
    sub={"host": ["*.example", "localhost"]},
    ip={"host": "[2001:db8::1]"},
    path={"path": "/x", "host": "A.example"},
    every={},
)


def test_a_rule_matches_hosts_and_subdomains() -> None:
    """A rule may match single hosts, or all subdomains of a name without the name itself. An invalid host matches."""
    for host, path, expected in (
        ("a.example", "/", ["one", "sub", "every"]),
        ("a.example", "/x", ["one", "sub", "path", "every"]),
        ("b.a.example", "/", ["sub", "every"]),
        ("example", "/", ["every"]),
        ("localhost", "/", ["sub", "every"]),
        ("[2001:db8::1]", "/", ["ip", "every"]),
        ("", "/x", ["every"]),
        ("no host", "/", ["one", "sub", "ip", "every"]),
    ):
        assert rules_for(HOSTS, path=path, host=host) == expected
        assert RuleSet(HOSTS).needs_host, (host, path)
        assert not RuleSet(SHOP).needs_host, (host, path)


def test_features_are_compared_as_text() -> None:
    """Each feature in a match must have one of its values. A missing feature does not match, an invalid one may."""
    for match, features, applies in (
        ({"region": "DE"}, {"region": "DE"}, True),
        ({"region": ["DE", "AT"]}, {"region": "AT"}, True),
        ({"region": ["DE", "AT"]}, {"region": " de"}, True),
        ({"region": ["DE", "AT"]}, {"region": "fr"}, False),
        ({"region": "DE"}, {}, False),
        ({"region": "DE"}, {"region": None}, False),
        ({"region": "DE"}, {"region": INVALID}, True),
        ({"ip": "10.0.0.0/8"}, {"ip": INVALID}, True),
        ({"ip": "10.0.0.0/8"}, {"ip": None}, False),
        ({"ip": ["2001:db8::/32", "::ffff:10.0.0.0/104"]}, {"ip": "::ffff:10.1.2.3"}, True),
        ({"ip": ["2001:db8::/32", "::ffff:10.0.0.0/104"]}, {"ip": "2001:db8:1:2::/64"}, True),
        ({"region": "DE", "group": "staff"}, {"region": "DE"}, False),
        ({"region": "DE", "group": "staff"}, {"region": "DE", "group": "staff"}, True),
        ({"region": "DE", "group": "staff"}, {"region": "FR", "group": INVALID}, False),
        ({"tier": [0, 1]}, {"tier": 0}, True),
        ({"tier": [0, 1]}, {"tier": "1"}, True),
        ({"tier": [0, 1]}, {"tier": 2}, False),
        ({"header:X-Client": "bot"}, {"header:x-client": "bot"}, True),
        ({"method": "post"}, {"method": "POST"}, True),
        ({"method": "GET"}, {"method": "HEAD"}, True),
        ({"method": "PUT", "methods": ["GET"]}, {"method": "HEAD"}, True),
    ):
        limiter = Limiter([Rule(name="r", limits="1/minute", match=match, key=[])], clock=ManualClock(1.0))
        assert bool(limiter.hit(features).rules) == applies


def test_the_needed_features_of_a_rule() -> None:
    """These are the features of key, match and tables, each once. Method, path and host are always there."""
    rule = Rule(
        limits="1/minute",
        key=["endpoint", "user|ip"],
        match={"path": "/x", "methods": ["GET"], "host": "h", "region": "DE"},
        per={"plan": {"free": "1/minute"}, "region": {"DE": "2/minute"}},
    )
    assert rule.needs == ("endpoint", "user", "ip", "region", "plan")
    assert RuleSet([rule, Rule(limits="1/s", key="ip")]).needs == rule.needs


def test_limits_in_every_form_are_equal() -> None:
    """A text, a list of texts, quotas and a mixture give the same limits."""
    five, twenty = Quota(5, 60), Quota(20, 3600)
    forms: list[Any] = ["5/minute; 20/hour", ["5/minute", "20/hour"], [five, twenty], (five, "20/hour")]
    assert {Rule(limits=form).quotas for form in forms} == {(five, twenty)}
    assert Rule(limits=five).quotas == (five,)


def test_rules_without_a_name_are_numbered() -> None:
    """Headers and keys need a name, so a rule without one is named by its position."""
    rules = RuleSet([Rule(limits="1/s"), Rule(limits="1/s", name="x"), Rule(limits="1/s; 2/minute")])
    assert list(rules.by_name) == ["rule-1", "x", "rule-3"]
    assert [limit.policy for limit in rules.rules[2].limits] == ["rule-3", "rule-3-2"]


def test_equal_options_are_equal_rules() -> None:
    """An option with its default value changes nothing, and the repr does not show it."""
    assert repr(Rule(limits="5/minute", name="a", cost=1)) == "Rule(limits='5/minute', name='a')"
    rules = [Rule(limits="5/minute", mode="enforce", match={"path": "/"}), Rule(limits="5/minute", match={"path": "/"})]
    assert rules[0] == rules[1] != Rule(limits="5/minute", mode="shadow")
    assert len(set(rules)) == 1


def test_settings_can_be_copied_and_pickled() -> None:
    """A process that another one starts receives them. Schedules and forms of values are built again."""
    rules: Any = [
        {"name": "a", "limits": "5/minute", "key": ["path:id as int"], "schedule": {"mon-sun": "2/minute"}},
        {"name": "b", "limits": "5/hour"},
    ]
    lists: Any = {"deny": {"email": ["ann@example.com"]}}
    settings = Settings(rules=rules, defaults={"timezone": "Asia/Tokyo", "mode": "shadow"}, lists=lists)
    for again in (copy.deepcopy(settings), pickle.loads(pickle.dumps(settings))):
        assert again == settings
        assert [vars(rule).keys() for rule in again.rules] == [vars(rule).keys() for rule in settings.rules]
        assert [(rule.place, rule.defaulted) for rule in again.rules] == [
            (rule.place, rule.defaulted) for rule in settings.rules
        ]
        assert Limiter(settings=again).hit({"path:id": "07"}).rules == ("a", "b")
    assert copy.copy(INVALID) is pickle.loads(pickle.dumps(INVALID)) is INVALID


def test_an_algorithm_is_a_name_or_a_registered_class() -> None:
    """A class is the same as its name, and so is a table without options. An unregistered class is an error."""
    assert Rule(limits="5/minute", algorithm=Gcra, lease="2%").lease_percent == 2
    assert Rule(limits="5/minute", algorithm={"name": "gcra"}, lease="2%").lease_percent == 2
    assert RuleSet([Rule(limits="5/minute", algorithm=Gcra)]).rules[0].limits[0].algorithm.name == "gcra"
    unregistered = type("Own", (Gcra,), {"name": "own"})
    expect_error(r"^algorithm: unknown algorithm 'own'", Rule, limits="5/minute", algorithm=unregistered)
    expect_error(
        r"^algorithm: the algorithm 'gcra' is another class than Mine\. Give it a name",
        Rule,
        limits="5/minute",
        algorithm=type("Mine", (Gcra,), {}),
    )
    expect_error(r"^algorithm: expected a name such as", Rule, limits="5/minute", algorithm=Algorithm)


def test_a_long_path_that_no_rule_reads_is_no_part_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests with long paths then find the plan of their view in the cache."""
    rules, looks = RuleSet([Rule(name="every", limits="1/s")]), list[str]()
    at = AccessLists.at
    monkeypatch.setattr(AccessLists, "at", lambda own, path, *more: looks.append(path) or at(own, path, *more))
    to = Destination(marks=ViewMarks())
    for name in "xyx":
        assert rules.plan("GET", f"/{name}" * 500, to=to).rules
    assert looks == [""]


def test_the_ban_of_a_rule_is_parsed() -> None:
    """The longest ban is seven days, or the first one. Any key with a feature of the client may have a ban."""
    ban: dict[str, Any] = {"after": 10, "within": "10m", "for": "1h"}
    day, minute = 86_400_000_000, 60_000_000
    for more, expected in (
        ({"growth": 2, "max": "1d"}, BanTerms(10, 10 * minute, 60 * minute, 2, day)),
        ({}, BanTerms(10, 10 * minute, 60 * minute, 1, 7 * day)),
        ({"for": "8d"}, BanTerms(10, 10 * minute, 8 * day, 1, 8 * day)),
    ):
        for key in (["endpoint", "user"], ["header:x-api-key"], ["user|ip"], ["ip/24"], ["path:tenant"]):
            assert Rule(limits="5/minute", key=key, ban={**ban, **more}).ban == expected
    rules = Limiter([Rule(name="api", limits="9/minute", ban={**ban, "after": 1, "growth": 3})]).rules
    shown = 'ban = {"after": 1, "within": "10m", "for": "1h", "growth": 3}'
    assert row_of(Overview(rules, {}).as_json(rules.rules[0]))["mode"] == ["enforce", shown]
    settings: Any = {"defaults": {"ban": ban}, "rules": [{"limits": "1/m"}, {"limits": "1/m", "ban": False}]}
    assert [rule.source.ban is None for rule in Limiter.from_settings(settings).rules.rules] == [False, True]
