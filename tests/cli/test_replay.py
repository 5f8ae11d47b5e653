"""``ratelimit-mw replay`` decides the requests of a log as a limiter does."""

from __future__ import annotations

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


def test_counts_at_the_times_of_the_log(rules: Write, log: Write) -> None:
    """Five requests at once exceed a limit of three per minute; five requests over minutes do not."""
    at_once = replayed(rules(SITE), log([line(at=0)] * 5))
    spread = replayed(rules(SITE), log([line(at=i * 120) for i in range(5)]))
    assert (at_once["requests"], at_once["rejected"]) == (5, 2)
    assert (spread["requests"], spread["rejected"]) == (5, 0)


def test_report_as_json(rules: Write, log: Write) -> None:
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
        "invalid_examples": [],
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


def test_report_as_tables(rules: Write, log: Write) -> None:
    """The tables show the rules, and the clients with most rejections."""
    lines = [line(f"192.0.2.{i}") for i in range(1, 5) for _ in range(3 + i)]
    api = {"name": "api", "limits": ["9/s", "10/h"], "match": {"path": "/api"}}
    answer = answer_of("replay", rules(SITE, api), log(lines), "--limit", 2)
    assert lines_of(answer) == [
        "2017-07-14 02:40:00 to 2017-07-14 02:40:00 UTC",
        "format: combined",
        "22 requests from 4 clients",
        "10 rejected (45.5%) from 4 clients",
        "",
    ]
    assert titles_of(answer) == ["Rules", "2 clients with most rejections"]
    of_api = {"rule": "api", "limit": ["9/second: 0", "10/hour: 0"]}
    assert rows_of(answer) == [
        {"rule": "site", "limit": ["3/minute"], "matched": 22, "rejected": 10, "share": 10 / 22, "clients": 4},
        {**of_api, "matched": 0, "rejected": 0, "share": 0, "clients": 0},
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
    assert lines_of(answer)[2:4] == ["1 request from 1 client", "0 rejected (0.0%) from 0 clients"]
    assert titles_of(answer) == []


def test_all_rules_that_reject_are_named(rules: Write, log: Write) -> None:
    """A request that two rules reject is one rejection of both rules."""
    tight = {"name": "tight", "limits": "3/hour"}
    report = replayed(rules(SITE, tight), log([line()] * 5))
    assert report["rejected"] == 2
    assert [rule["rejected"] for rule in report["rules"]] == [2, 2]
    assert report["clients_rejected_most"][0]["rules"] == ["site", "tight"]


def test_shadow_rules_never_reject(rules: Write, log: Write) -> None:
    """A shadow rule has a table of its own, and does not count as a rejection."""
    settings = rules({**SITE, "mode": "shadow"})
    access_log = log([line()] * 5)
    report = replayed(settings, access_log)
    assert (report["rejected"], report["clients_rejected"], report["clients_rejected_most"]) == (0, 0, [])
    assert report["rules"][0] | {"mode": "shadow", "rejected": 2} == report["rules"][0]
    answer = answer_of("replay", settings, access_log)
    assert titles_of(answer) == ["Shadow rules, which never reject"]
    assert rows_of(answer)[0]["would reject"] == 2


def test_count_when_goes_by_the_logged_status(rules: Write, log: Write) -> None:
    """Only responses with the statuses of ``count_when`` count."""
    settings = rules({**SITE, "count_when": {"status": 401}})
    fine = replayed(settings, log([line(status=200)] * 9))
    failing = replayed(settings, log([line(status=401)] * 9))
    assert (fine["rejected"], failing["rejected"]) == (0, 6)
    excepted = rules({**SITE, "count_unless": {"status": "2xx"}})
    assert [replayed(excepted, log([line(status=status)] * 9))["rejected"] for status in (200, 401)] == [0, 6]


def test_a_log_has_no_marks(rules: Write, log: Write) -> None:
    """A note names the rules that count what views mark."""
    answer = answer_of("replay", rules({**SITE, "count_when": {"marked": True}}), log([line()] * 9))
    assert answer.notes == ["the log does not contain marks, so no request is marked for site"]
    assert answer.json["rejected"] == 0


def test_limits_of_some_clients(rules: Write, log: Write) -> None:
    """Limits by key apply to their clients, and are listed when they have rejected."""
    settings = rules({**SITE, "key": "user", "per_key": {"alice": "6/minute", "bob": "9/minute"}})
    report = replayed(settings, log([line(user=user) for user in ("alice", "carol") for _ in range(8)]))
    assert report["rules"][0]["limits"] == [{"limit": "3/minute", "rejected": 5}, {"limit": "6/minute", "rejected": 2}]


def test_rule_may_reject_missing_keys(rules: Write, log: Write) -> None:
    """``when_missing`` decides about requests without a user."""
    report = replayed(rules({**SITE, "key": "user", "when_missing": "reject"}), log([line(), line(user="alice")]))
    assert (report["rejected"], report["rules"][0]["matched"]) == (1, 2)


def test_queues_delay(rules: Write, log: Write) -> None:
    """Requests in a queue are counted as delayed."""
    queue = {"name": "queue", "limits": "60/minute burst 5", "algorithm": {"name": "leaky-bucket", "mode": "queue"}}
    settings, access_log = rules(queue), log([line()] * 4)
    assert replayed(settings, access_log)["rules"][0]["delayed"] == 3
    assert rows_of(answer_of("replay", settings, access_log))[0]["delayed"] == 3
    assert "delayed" not in rows_of(answer_of("replay", rules(SITE), access_log))[0]


@each(
    ("same", "count"),
    [
        (["192.0.2.1", "::ffff:192.0.2.1"], 1),
        (["2001:db8::1", "2001:db8::2", "2001:DB8:0:0:ffff::"], 1),
        (["2001:db8::1", "2001:db8:0:1::1"], 2),
        (["-", "unix:"], 1),
        (["crawler.example.com", "Crawler.example.com", "other.example.com"], 2),
    ],
)
def test_clients_are_distinguished_as_in_the_application(rules: Write, log: Write, same: list[str], count: int) -> None:
    """The key of an IPv6 client is its prefix; a host name is a client; lines without one share a client."""
    assert replayed(rules(SITE), log(line(ip) for ip in same))["clients"] == count


def test_ipv6_prefix_of_the_settings(rules: Write, log: Write) -> None:
    """The prefix of the settings is used."""
    lines = [line("2001:db8::1"), line("2001:db8::2")]
    assert replayed(rules(SITE, ipv6_prefix=128), log(lines))["clients"] == 2


@each(
    ("rule", "hit", "missed"),
    [
        ({"match": {"path": "/a b"}}, {"path": "/a%20b?x=1"}, {"path": "/a%2520b"}),
        ({"match": {"methods": ["POST"]}}, {"method": "POST"}, {"method": "GET"}),
        ({"key": "user"}, {"user": "alice"}, {"user": "-"}),
        ({"key": "header:user-agent"}, {"agent": "curl"}, {"agent": "-"}),
        ({"key": "query:token"}, {"path": "/?token=1"}, {"path": "/?other=1"}),
        ({"key": "query:token"}, {"path": "/?" + "a&" * 2000}, {"path": "/?token="}),
        ({"match": {"host": "example.com"}}, {"path": "http://example.com/"}, {"path": "/"}),
        ({"match": {"header:user-agent": "curl"}}, {"agent": "curl"}, {"agent": "wget"}),
    ],
)
def test_features_of_a_line(
    rules: Write, log: Write, rule: dict[str, Any], hit: dict[str, Any], missed: dict[str, Any]
) -> None:
    """Each feature of a line is available to the rules, and any other feature is missing."""
    settings = rules({**SITE, **rule})
    assert replayed(settings, log([line(**hit)]))["rules"][0]["matched"] == 1
    assert replayed(settings, log([line(**missed)]))["rules"][0]["matched"] == 0


def test_referer_is_a_feature(rules: Write, log: Write) -> None:
    """The referer is a header."""
    text = line().replace('"-" "-"', '"https://example.com/" "-"')
    assert replayed(rules({**SITE, "key": "header:referer"}), log([text, line()]))["rules"][0]["matched"] == 1


def test_missing_features_are_noted(rules: Write, log: Write) -> None:
    """Features that no log contains are noted on stderr with their rules."""
    settings = rules(
        {"name": "a", "limits": "5/s", "key": ["email", "region"]},
        {"name": "b", "limits": "5/s", "key": "email", "match": {"host": "example.com", "header:x-a": "1"}},
        {"name": "c", "limits": "5/s", "key": ["ip", "user", "query:a"], "match": {"header:referer": "x"}},
        {"name": "d", "limits": "5/s", "key": "path:id", "match": {"path": "/items/{id}"}},  # its path gives it
    )
    answer = answer_of("replay", settings, log([line()]))
    assert answer.notes == [
        "the log does not contain email: missing in every request for a, b",
        "the log does not contain region: missing in every request for a",
        "the log does not contain header:x-a: missing in every request for b",
        "the log does not contain host: missing in every request for b",
    ]
    assert answer.json["requests"] == 1


def test_overrides_are_noted(rules: Write, log: Write) -> None:
    """The other rules are replayed."""
    answer = answer_of("replay", rules({"overrides": "login", "limits": "1/s"}, SITE), log([line()] * 5))
    assert answer.notes == ["rules[0] is not shown: it changes the rule 'login' of a decorator. Use check --app"]
    assert answer.json["rejected"] == 2


def test_store_of_the_settings_is_not_used(rules: Write, log: Write) -> None:
    """The replay counts in memory, with a note."""
    answer = answer_of("replay", rules(SITE, store="redis://nowhere.invalid:1/0"), log([line()] * 5))
    assert answer.json["rejected"] == 2
    assert answer.notes == ["counting in memory, not in redis"]


def test_snapshot_of_live_counts_is_not_used(rules: Write, log: Write, tmp_path: Path) -> None:
    """A replay starts with empty counts, and keeps the bound of the store."""
    snapshot = tmp_path / "counts"
    settings = rules(SITE, store=f"memory://?max_keys=7&snapshot={snapshot}")
    live = Limiter.from_settings(settings, clock=lambda: START * 1_000_000)
    assert [bool(live.hit({"ip": "192.0.2.1"})) for _ in range(4)] == [True] * 3 + [False]
    live.store.close()
    saved = snapshot.read_bytes()
    assert replayed(settings, log([line()] * 3))["rejected"] == 0
    assert snapshot.read_bytes() == saved


def test_deny_list(rules: Write, log: Write) -> None:
    """Rejections by the deny list are counted, though no rule has them."""
    settings = rules(SITE, lists={"deny": {"ip": ["192.0.2.9"]}})
    access_log = log([line("192.0.2.9")] * 2 + [line()])
    report = replayed(settings, access_log)
    assert (report["rejected"], report["denied"], report["rules"][0]["matched"]) == (2, 2, 1)
    assert report["clients_rejected_most"][0]["rules"] == ["(deny list)"]
    assert "2 of them by the deny list" in lines_of(answer_of("replay", settings, access_log))


def test_attributes_of_a_feature(rules: Write, log: Write) -> None:
    """A log has no attributes, unless a field of JSON lines has them."""
    settings = rules({**SITE, "key": "user.id", "limits": "1/minute"})
    answer = answer_of("replay", settings, log([line(user="alice")] * 2))
    assert answer.notes == ["the log does not contain user.id: missing in every request for site"]
    assert answer.json["rules"][0]["matched"] == 0
    entry = {"time": START, "ip": "192.0.2.1", "method": "GET", "path": "/", "status": 200, "account": {"number": 7}}
    json_log = log([json.dumps(entry) + "\n"] * 2, "app.log")
    report = replayed(settings, json_log, "--field", "user.id=account.number")
    assert (report["rules"][0]["matched"], report["rejected"]) == (2, 1)


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

app = Starlette(routes=[Route("/", home), Route("/items/{number}", item), Route("/old/{number}", home)])
route = {"name": "route", "limits": "3/minute", "key": ["endpoint"]}
rules = [route, {"name": "view", "limits": "9/minute", "key": ["view"]}]
app.add_middleware(RateLimitMiddleware, settings={"rules": rules})
"""


def test_an_application_gives_routes_and_decorators(
    log: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its routes give ``endpoint``, ``view`` and parameters, as in the middleware."""
    (tmp_path / "replayed_site.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    paths = ["/items/1"] * 3 + ["/items/2"] * 2 + ["/old/1"] * 2 + ["/"] * 4
    access_log = log(line(path=path) for path in paths)
    answer = answer_of("replay", "--app", "replayed_site:app", access_log)
    found = {rule["name"]: (rule["matched"], rule["rejected"]) for rule in answer.json["rules"]}
    assert found == {"route": (11, 2), "view": (11, 0), "item": (5, 1)}
    assert list(answer.notes) == []


def test_a_rule_that_needs_routes_is_refused_without_them(rules: Write, log: Write) -> None:
    """A field of the log may have the endpoint."""
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
    settings = load_settings(
        {
            "rules": [
                {"name": "burst", "limits": "10/minute burst 3", "algorithm": "gcra"},
                {"name": "failures", "limits": "2/minute", "count_when": {"status": 401}, "algorithm": "fixed-window"},
            ]
        }
    )
    requests = sorted(requests, key=lambda request: request[0])
    now = [0]
    limiter = Limiter(settings.rules, clock=lambda: now[0])
    rejected = []
    for at, client, status in requests:
        now[0] = (START + at) * 1_000_000
        verdict = limiter.hit({"ip": client, "method": "GET", "path": "/"})
        limiter.conclude(verdict, status)
        rejected += [] if verdict else [START + at]
    lines = [line(client, at=at, status=status) for at, client, status in requests]
    log = request_log(Files(tmp_path_factory.mktemp("logs")).log(lines))
    report = ReplayReport(log, Simulation(settings))
    found = log.db.execute("SELECT time FROM decided WHERE rejected ORDER BY 1").fetchall()
    assert [time for (time,) in found] == rejected
    assert report.rejected == len(rejected)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_a_curve_has_every_request(tmp_path_factory: pytest.TempPathFactory, times: list[int]) -> None:
    """Each is in the step of its time. There are few steps, whatever the length of the log."""
    log = request_log(Files(tmp_path_factory.mktemp("logs")).log([line(at=at) for at in times]))
    drawn = ReplayReport(log, Simulation(load_settings({"rules": [SITE]}))).curve()
    step = drawn["step"]
    assert step in STEPS
    assert len(drawn["times"]) <= 121
    expected = Counter((1_500_000_000 + at) // step * step for at in times)
    assert dict(zip(drawn["times"], drawn["requests"], strict=True)) == expected
    assert drawn["times"] == sorted(expected)


def test_all_clients_of_a_log_are_counted(tmp_path: Path) -> None:
    files = Files(tmp_path)
    lines = [line(f"192.0.{i // 250}.{i % 250}") for i in range(5_000)] + [line("198.51.100.1")] * 5
    answer = answer_of("replay", files.rules(SITE), files.log(lines))
    assert "5,005 requests from 5,001 clients" in lines_of(answer)
    assert tuple(rows_of(answer)[-1].values()) == ("198.51.100.1", 5, 2, "site", 0.4)


def test_more_keys_than_the_store_has(tmp_path: Path) -> None:
    """A note says that the counts are not those of each client."""
    files = Files(tmp_path)
    log = files.log(line(f"192.0.2.{i}") for i in range(9))
    (note,) = answer_of("replay", files.rules(SITE, store="memory://?max_keys=5"), log).notes
    assert note.startswith("more than 5 keys at once: some clients share counts")
    assert not answer_of("replay", files.rules(SITE, store="memory://?max_keys=50"), log).notes
