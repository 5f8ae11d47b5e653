"""``ratelimit-mw report``, ``top`` and ``traffic``: the numbers of several processes, and the import of access logs."""

import gzip
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import redis_handles
from click.testing import Result
from command_line import SITE, START, Files, answer_of, line, rows_of, run, run_with
from decision_service import Asked
from flask import Flask
from servers import Server
from tables import each

from ratelimit_mw import Limiter, clock
from ratelimit_mw.flask import RateLimiter, limit
from ratelimit_mw.testing import ManualClock, limits_timed_by
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
    assert run("report", file).stderr.startswith("Error: there is no traffic log at")
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
    for consume in (True, True, False):
        asked.check(features={name: value for name, value in client.items() if name in key}, consume=consume)
    assert [each["client"] for each in asked.ask("GET", "/v1/top").json()["clients"]] == [found["client"]]
    assert asked.ask("GET", "/v1/report?last=1h").json()["rules"][0]["rejected"] == 1


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
    """With an application, the commands need no file."""
    app = Flask("site")
    app.add_url_rule("/", view_func=limit("1/hour", name="home")(lambda: "hello"))
    limiter = RateLimiter(app, settings=json.loads(place(traffic_clients=True).read_text()))
    for _ in range(2):
        app.test_client().get("/")
    with app.app_context():
        limiter.limiter.close()
    result = run_with(app, "report", "--json")
    rows = {row["rule"]: row for row in json.loads(result.stdout)["rules"]}
    assert (rows["home"]["allowed"], rows["home"]["rejected"], rows["home"]["share"]) == (1, 1, 0.5)
    result = run_with(app, "top", "--rule", "home")
    assert result.stdout.split()[-3:] == ["home", "ip=127.0.0.1", "1"]


NOW = START + 1210  # 14 July 2017, 03:00:10 UTC


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The URL of a log with a few records. Its time is that of the command."""
    clock = ManualClock(NOW)
    with limits_timed_by(clock):
        url = f"sqlite:///{tmp_path}/log.db"
        log = TrafficLog(url, "1m:1d,1h:90d", clock)
        log.record("login", "ann", 3, at=START)
        log.record("login", "bob")
        log.record("page \x1b[31m")
        log.close()
        yield url


def shown(*args: object) -> Result:
    result = run("traffic", *args)
    assert result.exit_code == 0, result.stderr
    return result


def test_all_events_are_listed(url: str) -> None:
    """Names of events never control the terminal."""
    rows = [row.split() for row in shown(url).stdout.splitlines()[3:5]]
    assert rows == [["login", "4"], ["page", "\\x1b[31m", "1"]]
    assert json.loads(shown(url, "--json", "--from", "1h").stdout)["events"] == {"login": 4, "page \x1b[31m": 1}
    result = shown(url, "--to", "2017-07-01", "--from", "2017-06-30")
    assert "no event is recorded" in result.stderr


def test_an_event_is_a_table_or_a_curve(url: str) -> None:
    """With --plot, each count has a bar. The option may come before the URL."""
    for words in ((url, "login"), ("show", url, "login"), ("--from", "24h", url, "login")):
        output = shown(*words).stdout
        assert output.startswith("login: 4 from 2017-07-13 03:00 to 2017-07-14 03:30 UTC\n")
    rows = [row.split() for row in shown(url, "login", "--from", "30m", "--plot").stdout.splitlines()[3:-1]]
    before = shown("--plot", url, "login", "--from", "30m").stdout.splitlines()[3:-1]
    assert [row.split() for row in before] == rows
    assert [row for row in rows if row[2] != "0"] == [
        ["2017-07-14", "02:40", "3", "#" * 50],
        ["2017-07-14", "03:00", "1", "#" * 17],
    ]
    assert len(rows) == 31


def test_the_output_for_programs_has_exact_times(url: str) -> None:
    """JSON has the counts of all steps."""
    found = json.loads(shown(url, "login", "--from", "2017-07-14T02:40", "--to", "2017-07-14T03:00Z", "--json").stdout)
    assert found["counts"] == [3, *[0] * 19]
    assert (found["start"], found["end"], found["step"], found["total"]) == (START, START + 1200, 60, 3)


def test_a_list_without_room_says_what_is_missing(url: str, tmp_path: Path) -> None:
    """The clients with low counts were dropped."""
    log = TrafficLog(url, "1m:1d,1h:90d", ManualClock(NOW))
    for i in range(2_001):
        log.record("rule:site:rejected", f"client {i}", at=START)
    log.record("rule:site:rejected", "bob", 1_201, at=START)
    log.close()
    answer = answer_of("top", Files(tmp_path).rules(SITE, traffic_log=url, traffic_clients=True), "--limit", 1)
    assert (answer.json["complete_from"], answer.notes) == (2, ["Clients below 2 may be missing."])
    assert answer.json["clients"] == [{"rule": "site", "client": "bob", "rejected": 1_201}]


@each("words", [(), ("login",), ("login", "--plot")])
def test_a_command_closes_the_log(url: str, words: tuple[str, ...]) -> None:
    """It leaves no connection open."""
    with patch.object(TrafficLog, "close") as close:
        shown(url, *words)
    close.assert_called_once_with()


@each(
    ("words", "code", "message"),
    [
        (("{url}x", "login"), 1, "there is no traffic log at"),
        (("memory://", "login"), 1, "in each process of your application"),
        (("sqlit:///a.db",), 1, "Did you mean 'sqlite'"),
        (("{url}", "login", "--from", "yesterday"), 2, "expected a duration before now such as 7d"),
        (("{url}", "login", "--from", "1h", "--to", "2h"), 1, "before its start"),
        (("sqlite://[", "login"), 1, "sqlite:// needs the path of a file"),
        ((), 2, "Usage"),
        (("{url}", "--plot"), 2, "--plot draws the curve of an event. Name an EVENT"),
        (("{url}", "logins"), 0, "no record of 'logins' in this time. Did you mean 'login'?"),
    ],
)
def test_a_mistake_has_a_message(url: str, words: tuple[str, ...], code: int, message: str) -> None:
    result = run("traffic", *(word.format(url=url) for word in words))
    assert (result.exit_code, message in " ".join(result.output.split())) == (code, True), result.output


@each("command", ["top", "report", "check"])
def test_a_command_for_a_settings_file_names_that_of_a_log(command: str) -> None:
    """The message has no URL, which may have a password."""
    for log in ("sqlite:///log.db", "redis://:hidden@cache:6379/0", "sqlite://["):
        result = run(command, log)
        message = " ".join(result.output.split())
        assert (result.exit_code, "hidden" in message) == (2, False)
        assert "expected a file; got a URL." in message
        assert "run: ratelimit-mw traffic URL" in message


def test_an_access_log_is_imported(tmp_path: Path) -> None:
    """Requests count by status and path, files may be compressed, and older requests are left out."""
    files, clock = Files(tmp_path), ManualClock(NOW)
    lines = [line(ip=f"192.0.2.{i % 3}", at=i, path=f"/p{i % 2}?q={i}", status=200 + i % 2) for i in range(60)]
    plain, packed = files.log(lines[:30]), files.log(gzip.compress("".join(lines[30:]).encode()), "access.log.2.gz")
    old = files.log([line(at=-100 * 86_400), line(method="\\x16")], "old.log")
    url = f"sqlite:///{tmp_path}/log.db?retention=10s:1d,1m:90d"
    with limits_timed_by(clock):
        result = shown("import", url, plain, packed, old, "--json")
        found = json.loads(result.stdout)
        assert "1 request left out" in result.stderr
        assert (found["requests"], found["left_out"], found["lines"], found["invalid"]) == (60, 1, 62, 1)
        counted = f"format: combined\n30 requests counted in sqlite:///{tmp_path}/log.db\n"
        assert shown("import", url, plain).stdout == counted
        log = TrafficLog.open(url.partition("?")[0], clock)
        assert log.events(START, NOW) == {
            "request": 90, "path:/p0": 45, "path:/p1": 45, "status:200": 45, "status:201": 45,
        }  # fmt: skip
        assert log.curve("request", START, START + 59).counts == [20, 20, 20, 10, 10, 10]


def test_a_log_with_an_error_counts_nothing(tmp_path: Path) -> None:
    """A pipe is read as a whole before its requests are counted, as a file is. So is the URL."""
    url = f"sqlite:///{tmp_path}/log.db"
    read = [("combined", "\n", "contains no request"), ("combined", line() * 3 + "x\n", "more than 1%")]
    for name, lines, message in (*read, ("alb", line(), "not in the format alb")):
        result = run("traffic", "import", url, "-", "--format", name, input=lines)
        assert (result.exit_code, message in result.stderr) == (1, True)
        assert not (tmp_path / "log.db").exists()
    assert run("traffic", "import", "nowhere://x", "-", input=line()).exit_code == 1


def test_a_large_log_is_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts that wait stay few. Of more of them, new events would count together."""
    monkeypatch.setattr("ratelimit_mw.cli.traffic._AT_ONCE", 10)
    for name in ("_MAX_NEW_COUNTS", "_MAX_COUNTS"):
        monkeypatch.setattr(f"ratelimit_mw.traffic.log.{name}", 15)
    with limits_timed_by(ManualClock(NOW)):
        path = Files(tmp_path).log([line(at=i, path=f"/{i}") for i in range(35)])
        url = f"sqlite:///{tmp_path}/log.db"
        shown("import", url, path)
        assert len(TrafficLog.open(url, ManualClock(NOW)).events(START, NOW)) == 37
