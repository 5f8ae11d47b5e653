"""``ratelimit-mw report`` and ``top``: the numbers of several processes, in every traffic log that they can share."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis_handles
from command_line import Files, answer_of, rows_of, run
from decision_service import API, Asked
from flask import Flask
from servers import Server
from tables import each

from ratelimit_mw import Limiter, clock
from ratelimit_mw.flask import RateLimiter, limit
from ratelimit_mw.traffic import TrafficLog

RULES = [
    {"name": "api", "limits": "3/hour"},
    {"name": "new", "limits": "1/hour", "mode": "shadow"},
    {"name": "unused", "match": {"path": "/unused"}, "limits": "1/hour", "unrouted": True},
]
WORKER = """
import sys
from ratelimit_mw import Limiter, clock
clock.WALL_AT_ZERO = int(sys.argv[3])
limiter = Limiter.from_settings(sys.argv[1])
for _ in range(5):
    limiter.hit({"ip": "192.0.2.7", "user": "ann"})
if sys.argv[2] == "close":
    limiter.close()
"""
Place = Callable[..., Path]


@pytest.fixture(params=["sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path, redis_server: Server) -> Place:
    """Returns a settings file with a traffic log of its own. No command needs the store, which is in each process."""
    logs = {
        "sqlite": f"sqlite:///{tmp_path / 'traffic.db'}",
        "redis": redis_handles.address(redis_server, f"?prefix={tmp_path.name}:{time.monotonic_ns()}:"),
    }
    return lambda **settings: Files(tmp_path).rules(*RULES, traffic_log=logs[request.param], **settings)


@contextmanager
def worker(file: Path, how: str = "close") -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker. It has the clock of this process, which begins each test at the start of a minute."""
    with subprocess.Popen([sys.executable, "-c", WORKER, str(file), how, str(clock.WALL_AT_ZERO)]) as process:
        yield process


def read(command: str, file: Path, *options: str) -> Any:
    result = run(command, file, "--json", *options)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def outcomes(file: Path, *options: str) -> dict[str, tuple[int, int, int]]:
    return {
        row["rule"]: (row["allowed"], row["rejected"], row["shadow"]) for row in read("report", file, *options)["rules"]
    }


def test_the_numbers_of_all_processes_are_together(place: Place) -> None:
    """Those of processes that have ended, too. A rule without a request is in the table."""
    file = place(traffic_clients=True)
    assert "there is no traffic log at" in run("report", file).stderr
    for how in ("close", "end"):
        with worker(file, how) as process:
            assert process.wait(60) == 0
    expected = {"api": (6, 4, 0), "new": (2, 0, 8), "unused": (0, 0, 0)}
    assert outcomes(file) == outcomes(file, "--last", "1h") == outcomes(file, "--last", "7d") == expected
    clients = read("top", file)["clients"]
    assert [(each["rule"], each["client"], each["rejected"]) for each in clients] == [
        ("new", "ip=192.0.2.7", 8),
        ("api", "ip=192.0.2.7", 4),
    ]
    assert [each["rule"] for each in read("top", file, "--rule", "api", "--last", "1h")["clients"]] == ["api"]
    api, new, unused = rows_of(answer_of("report", file))
    zero = {"allowed": 0, "rejected": 0, "would be rejected": 0, "share": 0.0}
    assert api == {**zero, "rule": "api", "mode": "enforce", "allowed": 6, "rejected": 4, "share": 0.4}
    assert new == {**zero, "rule": "new", "mode": "shadow", "allowed": 2, "would be rejected": 8}
    assert unused == {**zero, "rule": "unused", "mode": "enforce"}
    assert rows_of(answer_of("top", file, "--limit", 1)) == [{"rule": "new", "client": "ip=192.0.2.7", "rejected": 8}]


SECRET = {"secret": "correct horse battery staple"}


@each(
    ("key", "settings", "shown"),
    [
        (["user", "ip"], {}, "user=100% ann ip=192.0.2.7"),
        # The key of a client without personal features begins with a digest that is no value.
        (["path"], SECRET, "path=/a/b"),
        (["path", "method"], SECRET, "path=/a/b method=GET"),
        (["path", "user"], SECRET, "path=/a/b user="),
        ([], SECRET, ""),
    ],
)
def test_top_names_clients_as_inspect_does(
    tmp_path_factory: pytest.TempPathFactory, key: list[str], settings: dict[str, Any], shown: str
) -> None:
    """You copy the words of a client into another command. A secret keeps personal features out of the log."""
    folder, rule = tmp_path_factory.mktemp("site"), {"name": "api", "key": key, "limits": "1/hour"}
    places = {"store": f"lmdb://{folder}/limits", "traffic_log": f"sqlite:///{folder}/traffic.db"}
    file = Files(folder).rules(rule, **places, traffic_clients=True, **settings)
    client = {"path": "/a/b", "method": "GET", "user": "100% ann", "ip": "192.0.2.7"}
    limiter = Limiter.from_settings(file)
    for _ in range(2):
        limiter.hit(client)
    limiter.close()
    (found,) = read("inspect", file)["keys"]
    assert found["client"].startswith(shown)
    assert ("ann" in found["client"]) == (not settings)
    assert [each["client"] for each in read("top", file)["clients"]] == [found["client"]]
    asked = Asked(rule, traffic_log="memory://", traffic_clients=True, **settings)
    for _ in range(2):
        asked.check(features={name: value for name, value in client.items() if name in key})
    assert [each["client"] for each in asked.ask("GET", "/v1/top").json()["clients"]] == [found["client"]]


def test_rejected_includes_the_parts_beside_it(place: Place) -> None:
    """A banned client and one on the deny list are rejected. The columns of the parts appear when there are any."""
    file = place(
        lists={"deny": {"ip": ["192.0.2.66"]}},
        defaults={"ban": {"after": 2, "within": "1h", "for": "1h"}},
    )
    limiter = Limiter.from_settings(file)
    for address in ["192.0.2.7"] * 8 + ["192.0.2.66"]:
        limiter.hit({"ip": address})
    limiter.close()
    (api, *_), denied = read("report", file)["rules"], read("report", file)["rules"][-1]
    assert (api["allowed"], api["rejected"], api["banned"], api["share"]) == (3, 5, 3, 0.625)
    assert (denied["rule"], denied["rejected"], denied["denied"]) == ("", 1, 1)
    columns = [*rows_of(answer_of("report", file))[0]]
    assert columns[3:6] == ["rejected", "of which banned", "of which denied"]


def test_the_error_names_the_setting(tmp_path: Path) -> None:
    """Each command names what to add."""
    log = f"sqlite:///{tmp_path}/traffic.db"
    with closing(TrafficLog(log)) as written:
        written.record("event")
    no_log, shared = 'has no traffic log. Add traffic_log = "sqlite:///traffic.db"', "Set a log that processes share"
    for command, settings, missing in (
        ("report", {}, no_log),
        ("top", {"traffic_clients": True}, no_log),
        ("top", {"traffic_log": log}, "does not record clients. Add traffic_clients = true"),
        ("report", {"traffic_log": "memory://"}, shared),
    ):
        result = run(command, Files(tmp_path).rules(*RULES, **settings), "--json")  # type: ignore[arg-type]
        assert (result.exit_code, missing in json.loads(result.stdout)["error"]) == (1, True), (command, settings)


def test_requests_outside_the_range_are_left_out(tmp_path: Path) -> None:
    """A range without a request says so."""
    url = f"sqlite:///{tmp_path}/traffic.db"
    file, log = Files(tmp_path).rules(*RULES, traffic_log=url, traffic_clients=True), TrafficLog(url)
    log.record("rule:api:rejected", "ip=192.0.2.7", n=5, at=time.time() - 30 * 86_400)
    log.close()
    assert outcomes(file, "--last", "7d")["api"] == (0, 0, 0)
    assert "no request is recorded in this time" in run("report", file, "--last", "7d").stderr
    assert "no rejection is recorded in this time" in run("top", file, "--last", "7d").stderr
    assert outcomes(file, "--last", "31d")["api"] == outcomes(file, "--last", "366d")["api"] == (0, 5, 0)
    assert [each["rejected"] for each in read("top", file, "--last", "31d")["clients"]] == [5]


def test_rules_of_decorators_are_in_the_report_of_an_application(place: Place) -> None:
    """Within Flask, the commands need no file."""
    app = Flask("site")
    app.add_url_rule("/", view_func=limit("1/hour", name="home")(lambda: "hello"))
    limiter = RateLimiter(app, settings=json.loads(place(traffic_clients=True).read_text()))
    for _ in range(2):
        app.test_client().get("/")
    with app.app_context():
        limiter.limiter.close()
    result = app.test_cli_runner().invoke(args=["ratelimit", "report", "--json"])
    rows = {row["rule"]: row for row in json.loads(result.stdout)["rules"]}
    assert (rows["home"]["allowed"], rows["home"]["rejected"], rows["home"]["share"]) == (1, 1, 0.5)
    result = app.test_cli_runner().invoke(args=["ratelimit", "top", "--rule", "home"])
    assert result.stdout.split()[-3:] == ["home", "ip=127.0.0.1", "1"]


def test_the_admin_api_of_the_service_has_the_same_numbers() -> None:
    """Even with a log in memory, which no command can reach."""
    asked = Asked(API, traffic_log="memory://", traffic_clients=True)
    for _ in range(5):
        asked.check(features={"ip": "192.0.2.7"})
    (row,) = asked.ask("GET", "/v1/report?last=1h").json()["rules"]
    assert (row["rule"], row["mode"], row["allowed"], row["rejected"], row["share"]) == ("api", "enforce", 3, 2, 0.4)
    top = {"clients": [{"rule": "api", "client": "ip=192.0.2.7", "rejected": 2}], "complete_from": 1}
    assert asked.ask("GET", "/v1/top").json() == asked.ask("GET", "/v1/top?rule=api").json() == top
    assert asked.ask("GET", "/v1/top", headers={"authorization": ""}).status_code == 401
