"""``ratelimit-mw replay`` decides the requests of a log as a limiter does."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from command_line import (
    SITE,
    START,
    Files,
    Write,
    answer_of,
    line,
    lines_of,
    replayed,
    request_log,
    rows_of,
    run,
    titles_of,
)
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from ratelimit_mw import Limiter, load_settings
from ratelimit_mw.cli.replay.report import STEPS, ReplayReport
from ratelimit_mw.cli.replay.simulation import Simulation
from ratelimit_mw.cli.source import Source
from ratelimit_mw.settings import SettingsDict

QUEUE = {"name": "queue", "limits": "60/minute burst 5", "algorithm": {"name": "leaky-bucket", "mode": "queue"}}
BY_USER = {**SITE, "key": "user", "per_key": {"alice": "6/minute", "bob": "9/minute"}}
FAILURES, NO_SUCCESS = {"count_when": {"status": 401}}, {"count_unless": {"status": "2xx"}}
DENY = {"lists": {"deny": {"ip": ["192.0.2.9"]}}}


@each(
    ("rule", "settings", "lines", "found"),
    [
        # Five requests at once exceed a limit of three per minute; five requests over minutes do not.
        (SITE, {}, [line()] * 5, {"rejected": 2, "matched": 5, "mode": "enforce"}),
        (SITE, {}, [line(at=i * 120) for i in range(5)], {"rejected": 0}),
        # Only some responses count.
        *(({**SITE, **only}, {}, [line(status=200)] * 9, {"rejected": 0}) for only in (FAILURES, NO_SUCCESS)),
        *(({**SITE, **only}, {}, [line(status=401)] * 9, {"rejected": 6}) for only in (FAILURES, NO_SUCCESS)),
        # Limits by key apply to their clients, and are listed when they have rejected.
        (
            BY_USER,
            {},
            [line(user=user) for user in ("alice", "carol") for _ in range(8)],
            {"limits": [{"limit": "3/minute", "rejected": 5}, {"limit": "6/minute", "rejected": 2}]},
        ),
        # A rule may reject requests without a user.
        (
            {**SITE, "key": "user", "when_missing": "reject"},
            {},
            [line(), line(user="alice")],
            {"rejected": 1, "matched": 2},
        ),
        # Requests in a queue are delayed.
        (QUEUE, {}, [line()] * 4, {"delayed": 3}),
        # A rule in shadow mode has the requests that it would reject.
        ({**SITE, "mode": "shadow"}, {}, [line()] * 5, {"rejected": 2, "mode": "shadow"}),
        # The deny list decides first, and neither the store nor an observer is asked.
        (SITE, DENY, [line("192.0.2.9")] * 2 + [line()], {"matched": 1, "rejected": 0}),
        (SITE, {"store": "redis://nowhere.invalid:1/0", "observers": ["nowhere:f"]}, [line()] * 5, {"rejected": 2}),
        # Rules that are turned off are replayed as they decide where they are on.
        (SITE, {"enabled": False}, [line()] * 5, {"rejected": 2}),
    ],
)
def test_the_counts_of_a_rule(
    rules: Write, log: Write, rule: dict[str, Any], settings: dict[str, Any], lines: list[str], found: dict[str, Any]
) -> None:
    """The requests are decided at the times of the log, by their logged statuses and features."""
    (counts,) = replayed(rules(rule, **settings), log(lines))["rules"]
    assert {name: counts[name] for name in found} == found


def test_the_json_has_totals_rules_and_clients(rules: Write, log: Write) -> None:
    """The JSON contains totals, times, rules with limits, and the clients with most rejections."""
    lines = [line("192.0.2.1", i) for i in range(5)] + [line("192.0.2.2", i) for i in range(9)]
    two = {"name": "two", "limits": ["4/minute", "100/hour"], "match": {"path": "/nowhere"}}
    report = replayed(rules(SITE, two), log([*lines, line("192.0.2.3", 70)]))
    assert report == {
        "requests": 15,
        "rejected": 8,
        "denied": 0,
        "clients": 3,
        "clients_rejected": 2,
        "first": "2017-07-14T02:40:00+00:00",
        "last": "2017-07-14T02:41:10+00:00",
        "formats": {"combined": 15},
        "lines": 15,
        "invalid": 0,
        "first_invalid": None,
        "rules": [
            {
                "name": "site",
                "mode": "enforce",
                "matched": 15,
                "rejected": 8,
                "delayed": 0,
                "banned": 0,
                "clients_rejected": 2,
                "limits": [{"limit": "3/minute", "rejected": 8}],
            },
            {
                "name": "two",
                "mode": "enforce",
                "matched": 0,
                "rejected": 0,
                "delayed": 0,
                "banned": 0,
                "clients_rejected": 0,
                "limits": [{"limit": "4/minute", "rejected": 0}, {"limit": "100/hour", "rejected": 0}],
            },
        ],
        "clients_rejected_most": [
            {"client": "192.0.2.2", "requests": 9, "rejected": 6, "rules": ["site"]},
            {"client": "192.0.2.1", "requests": 5, "rejected": 2, "rules": ["site"]},
        ],
        "curve": {
            "step": 1,
            "times": [START + i for i in (*range(9), 70)],
            "requests": [2] * 5 + [1] * 5,
            "rejected": [0] * 3 + [2] * 2 + [1] * 4 + [0],
        },
    }


def test_the_tables_show_rules_by_mode_and_clients(rules: Write, log: Write) -> None:
    """The tables show the rules that enforce, those in shadow mode, and the clients with most rejections."""
    lines = [line(f"192.0.2.{i}") for i in range(1, 5) for _ in range(3 + i)]
    api = {"name": "api", "limits": ["9/s", "10/h"], "match": {"path": "/api"}}
    shadow, denied = {**SITE, "name": "new", "mode": "shadow"}, [line("192.0.2.9")]
    answer = answer_of("replay", rules(SITE, api, shadow, QUEUE, **DENY), log(lines + denied), "--limit", 2)
    assert lines_of(answer) == [
        "2017-07-14 02:40 to 2017-07-14 02:40 UTC",
        "format: combined",
        "23 requests from 5 clients",
        "11 rejected (47.8%) from 5 clients",
        "1 of them by the deny list",
        "",
    ]
    assert titles_of(answer) == ["Rules", "Shadow rules, which never reject", "2 clients with most rejections"]
    zero = {"rejected": 0, "delayed": 0, "share": 0, "clients": 0}
    of_site = {"rejected": 10, "delayed": 0, "share": 10 / 22, "clients": 4}
    site, other, queue, new, *clients = rows_of(answer)
    assert site == {"rule": "site", "limit": ["3/minute"], "matched": 22, **of_site}
    assert other == {"rule": "api", "limit": ["9/second: 0", "10/hour: 0"], "matched": 0, **zero}
    assert queue["delayed"] == 8
    assert new == {
        "rule": "new",
        "limit": ["3/minute"],
        "matched": 22,
        "would reject": 10,
        "share": 10 / 22,
        "clients": 4,
    }
    assert clients == [
        {"client": "192.0.2.4", "requests": 7, "rejected": 4, "rules": "site", "share": 4 / 7},
        {"client": "192.0.2.3", "requests": 6, "rejected": 3, "rules": "site", "share": 0.5},
    ]
    assert answer.notes == []


def test_one_client_and_no_rules(rules: Write, log: Write) -> None:
    """Numbers of one have a singular noun, and there are no empty tables."""
    answer = answer_of("replay", rules(SITE), log([line()] * 4))
    assert lines_of(answer)[2:4] == ["4 requests from 1 client", "1 rejected (25.0%) from 1 client"]
    assert titles_of(answer) == ["Rules", "Clients with most rejections"]
    answer = answer_of("replay", rules(), log([line()]))
    assert lines_of(answer)[2:] == ["1 request from 1 client", "0 rejected (0.0%) from 0 clients", ""]
    assert titles_of(answer) == []


def test_all_rules_that_reject_are_named(rules: Write, log: Write) -> None:
    """A request that two rules reject is one rejection of both rules. Rules in shadow mode reject no client."""
    tight, shadow = {"name": "tight", "limits": "3/hour"}, {"name": "new", "limits": "1/hour", "mode": "shadow"}
    report = replayed(rules(SITE, tight, shadow, **DENY), log([line()] * 5 + [line("192.0.2.9")]))
    assert (report["rejected"], report["denied"], report["clients_rejected"]) == (3, 1, 2)
    assert [rule["rejected"] for rule in report["rules"]] == [2, 2, 4]
    most = [(each["client"], each["rules"]) for each in report["clients_rejected_most"]]
    assert most == [("192.0.2.1", ["site", "tight"]), ("192.0.2.9", ["(deny list)"])]


@each(
    ("same", "settings", "count"),
    [
        (["192.0.2.1", "::ffff:192.0.2.1"], {}, 1),
        (["2001:db8::1", "2001:db8::2", "2001:DB8:0:0:ffff::"], {}, 1),
        (["2001:db8::1", "2001:db8:0:1::1"], {}, 2),
        (["2001:db8::1", "2001:db8::2"], {"ipv6_prefix": 128}, 2),
        (["-", "unix:"], {}, 1),
        (["crawler.example.com", "Crawler.example.com", "other.example.com"], {}, 2),
    ],
)
def test_clients_are_distinguished_as_in_the_application(
    rules: Write, log: Write, same: list[str], settings: dict[str, Any], count: int
) -> None:
    """The key of an IPv6 client is its prefix; a host name is a client; lines without one share a client."""
    assert replayed(rules(SITE, **settings), log(line(ip) for ip in same))["clients"] == count


@each(
    ("rule", "hit", "missed"),
    [
        ({"match": {"path": "/a b"}}, line(path="/a%20b?x=1"), line(path="/a%2520b")),
        ({"match": {"methods": ["POST"]}}, line(method="POST"), line(method="GET")),
        ({"key": "user"}, line(user="alice"), line(user="-")),
        ({"key": "header:user-agent"}, line(agent="curl"), line(agent="-")),
        ({"key": "header:referer"}, line().replace('"-" "-"', '"https://example.com/" "-"'), line()),
        ({"key": "query:token"}, line(path="/?token=1"), line(path="/?other=1")),
        ({"key": "query:token"}, line(path="/?" + "a&" * 2000), line(path="/?token=")),
        ({"key": "host"}, line(path="http://example.com/"), line(path="/")),
        ({"match": {"host": "example.com"}}, line(path="http://example.com/"), line(path="/")),
        ({"match": {"header:user-agent": "curl"}}, line(agent="curl"), line(agent="wget")),
    ],
)
def test_features_of_a_line(rules: Write, log: Write, rule: dict[str, Any], hit: str, missed: str) -> None:
    """Each feature of a line is available to the rules, and any other feature is missing."""
    settings = rules({**SITE, **rule})
    assert [replayed(settings, log([text]))["rules"][0]["matched"] for text in (hit, missed)] == [1, 0]


def lacks(name: str, of: str = "site") -> str:
    return f"the log does not contain {name}: missing in every request for {of}"


@each(
    ("several", "settings", "notes"),
    [
        (
            [
                {"name": "a", "limits": "5/s", "key": ["email", "region"]},
                {"name": "b", "limits": "5/s", "key": "email", "match": {"host": "example.com", "header:x-a": "1"}},
                {"name": "c", "limits": "5/s", "key": ["ip", "user", "query:a"], "match": {"header:referer": "x"}},
                {"name": "d", "limits": "5/s", "key": "path:id", "match": {"path": "/items/{id}"}},  # its path gives it
            ],
            {},
            [
                *(lacks("email", "a, b"), lacks("region", "a"), lacks("header:x-a", "b"), lacks("host", "b")),
                *(lacks("user", "c"), lacks("header:referer", "c")),
            ],
        ),
        ([{**SITE, "key": ["user.id", "header:x-a"]}], {}, [lacks("user.id"), lacks("header:x-a")]),
        (
            [{"overrides": "login", "limits": "1/s"}, SITE],
            {},
            ["rules[0] is not shown: it changes the rule 'login' of a decorator. Use check --app"],
        ),
        ([SITE], {"store": "redis://nowhere.invalid:1/0"}, ["counting in memory, not in redis"]),
        (
            [{**SITE, "count_when": {"marked": True}}],
            {},
            ["the log does not contain marks, so no request is marked for site"],
        ),
        (
            [{**SITE, "limits": "2 concurrent"}],
            {},
            ["requests end at once in the replay, so concurrency limits reject none for site"],
        ),
    ],
)
def test_notes_name_what_differs_from_the_application(
    rules: Write, log: Write, several: list[dict[str, Any]], settings: dict[str, Any], notes: list[str]
) -> None:
    """The other rules are replayed."""
    answer = answer_of("replay", rules(*several, **settings), log(line(f"192.0.2.{i}") for i in range(9)))
    assert [*answer.notes] == notes
    assert answer.json["requests"] == 9


def test_a_full_store_is_noted(rules: Write, log: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratelimit_mw.cli.replay.simulation._MAX_KEYS", 5)
    (found,) = answer_of("replay", rules(SITE), log(line(f"192.0.2.{i}") for i in range(9))).notes
    assert found == "more than 5 keys at once: some clients share counts, and may be rejected too early"


def test_snapshot_of_live_counts_is_not_used(rules: Write, log: Write, tmp_path: Path) -> None:
    """A replay starts with empty counts, and leaves those of the application alone."""
    snapshot = tmp_path / "counts"
    settings = rules(SITE, store=f"memory://?max_keys=7&snapshot={snapshot}")
    live = Limiter.from_settings(settings, clock=lambda: START * 1_000_000)
    assert [bool(live.hit({"ip": "192.0.2.1"})) for _ in range(4)] == [True] * 3 + [False]
    live.close()
    saved = snapshot.read_bytes()
    assert replayed(settings, log([line()] * 3))["rejected"] == 0
    assert snapshot.read_bytes() == saved


def test_a_field_of_json_lines_may_have_an_attribute(rules: Write, log: Write) -> None:
    entry = {"time": START, "ip": "192.0.2.1", "method": "GET", "path": "/", "status": 200, "user": {"id": 7}}
    settings = rules({**SITE, "key": "user.id", "limits": "1/minute"})
    report = replayed(settings, log([json.dumps(entry) + "\n"] * 2))
    assert (report["rules"][0]["matched"], report["rejected"]) == (2, 1)


def test_a_deny_list_rejects_an_invalid_feature(rules: Write, log: Write) -> None:
    """Several lines of a header are invalid, as in the middleware."""
    settings = rules(lists={"deny": {"header:x-a": ["9"]}})
    entry = {"time": START, "ip": "192.0.2.1", "method": "GET", "path": "/", "status": 200, "http_x_a": ["1", "2"]}
    assert replayed(settings, log([json.dumps(entry) + "\n"]))["denied"] == 1


APP = """
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from ratelimit_mw.starlette import RateLimitMiddleware, limit

def home(request):
    return PlainTextResponse("home")

@limit("2/minute", name="item", key=["path:number"])
def item(request):
    return PlainTextResponse("item")

app = Starlette(routes=[Route("/", home), Route("/items/{number}", item), Route("/old/{number}", home, name="old")])
route = {"name": "route", "limits": "3/minute", "key": ["endpoint"]}
rules = [route, {"name": "view", "limits": "4/minute", "key": ["view"]}]
app.add_middleware(RateLimitMiddleware, settings={"rules": rules}, trusted_proxies=["10.0.0.1"])
off = RateLimitMiddleware(app, settings={"rules": rules, "enabled": False})
"""


def test_an_application_gives_routes_and_decorators(log: Write, folder: Path) -> None:
    """Its routes give ``endpoint``, ``view`` and parameters, as in the middleware. A view may have several names.

    The arguments of the middleware hold, too.
    """
    (folder / "replayed_site.py").write_text(APP)
    paths = ["/items/1"] * 3 + ["/items/2"] * 2 + ["/old/1"] * 2 + ["/"] * 4
    access_log = log(line("10.0.0.1", path=path).replace("\n", ' "192.0.2.7"\n') for path in paths)
    answer = answer_of("replay", "--app", "replayed_site:app", access_log)
    found = {rule["name"]: (rule["matched"], rule["rejected"]) for rule in answer.json["rules"]}
    assert found == {"route": (11, 1), "view": (11, 2), "item": (5, 1)}
    assert [each["client"] for each in answer.json["clients_rejected_most"]] == ["192.0.2.7"]
    assert list(answer.notes) == []
    (note,) = answer_of("replay", "--app", "replayed_site:off", access_log).notes
    assert note == "the settings have enabled = false, so no request is limited"


def test_a_rule_that_needs_routes_is_refused_without_them(rules: Write, log: Write) -> None:
    for option in ({"key": "endpoint"}, {"key": "view"}, {"match": {"view": "shop.item"}}):
        result = run("replay", rules({**SITE, **option}), log([line()]))
        assert (result.exit_code, "--app MODULE:APP" in result.stderr) == (1, True), option


@given(
    st.lists(
        st.tuples(
            st.integers(0, 200), st.sampled_from(["192.0.2.1", "192.0.2.2", "192.0.2.3"]), st.sampled_from([200, 401])
        ),
        min_size=1,
        max_size=60,
    )
)
def test_agrees_with_a_limiter(tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[int, str, int]]) -> None:
    """A limiter with the same times and statuses rejects the same requests."""
    rules: SettingsDict = {
        "rules": [
            {"name": "burst", "limits": "10/minute burst 3", "algorithm": "gcra"},
            {"name": "failures", "limits": "2/minute", "count_when": {"status": 401}, "algorithm": "fixed-window"},
        ]
    }
    requests = sorted(requests, key=lambda request: request[0])
    now = [0]
    limiter = Limiter(load_settings(rules).rules, clock=lambda: now[0])
    rejected = []
    for at, client, status in requests:
        now[0] = (START + at) * 1_000_000
        verdict = limiter.hit({"ip": client, "method": "GET", "path": "/"})
        limiter.conclude(verdict, status)
        rejected += [] if verdict else [START + at]
    lines = [line(client, at=at, status=status) for at, client, status in requests]
    log = request_log(Files(tmp_path_factory.mktemp("logs")).log(lines))
    report = ReplayReport(log, Simulation(Source.from_settings(rules)))
    found = log.db.execute("SELECT time FROM decided WHERE rejected ORDER BY 1").fetchall()
    assert [time for (time,) in found] == rejected
    assert report.rejected == len(rejected)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_a_curve_has_every_request(tmp_path_factory: pytest.TempPathFactory, times: list[int]) -> None:
    """Each is in the step of its time. There are few steps, whatever the length of the log."""
    log = request_log(Files(tmp_path_factory.mktemp("logs")).log([line(at=at) for at in times]))
    drawn = ReplayReport(log, Simulation(Source.from_settings({"rules": [SITE]}))).curve()
    step = drawn["step"]
    assert step in STEPS
    assert len(range(drawn["times"][0], drawn["times"][-1] + 1, step)) <= 121
    expected = Counter((1_500_000_000 + at) // step * step for at in times)
    assert dict(zip(drawn["times"], drawn["requests"], strict=True)) == expected
    assert drawn["times"] == sorted(expected)
