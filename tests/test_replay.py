"""What replay promises: the log's requests, at the log's times, decided as the limiter decides; and a report of it."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw import Limiter, load_settings
from ratelimit_mw.access_log import LONGEST_LINE, LogEntry, Target
from ratelimit_mw.cli import commands
from ratelimit_mw.cli.log_file import LogReader, in_order
from ratelimit_mw.cli.simulation import Simulation

PROGRAM = Path(sys.executable).parent / "ratelimit-mw"
START = 1_500_000_000

Write = Callable[..., Path]


def run(*args: object, **options: Any) -> Result:
    """The command in this process. A traceback is a failure of the test, not a result."""
    return CliRunner().invoke(commands(), ["replay", *map(str, args)], catch_exceptions=False, **options)


def line(
    ip: str = "192.0.2.1",
    at: int = 0,
    path: str = "/",
    method: str = "GET",
    status: int = 200,
    user: str = "-",
    agent: str = "-",
) -> str:
    """One line of the combined format, ``at`` seconds from the start."""
    time = datetime.fromtimestamp(START + at, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
    return f'{ip} - {user} [{time}] "{method} {path} HTTP/1.1" {status} 12 "-" "{agent}"\n'


@pytest.fixture
def rules(tmp_path: Path) -> Write:
    """Writes a settings file with these rules, returns its path."""

    def write(*tables: dict[str, Any], **settings: Any) -> Path:
        path = tmp_path / "ratelimit.json"
        path.write_text(json.dumps({"rules": tables, **settings}))
        return path

    return write


@pytest.fixture
def log(tmp_path: Path) -> Write:
    """Writes a log, returns its path."""

    def write(lines: Iterable[str] | bytes, name: str = "access.log") -> Path:
        path = tmp_path / name
        path.write_bytes(lines if isinstance(lines, bytes) else "".join(lines).encode())
        return path

    return write


def replayed(settings: Path, access_log: Path, *args: object) -> dict[str, Any]:
    result = run(settings, access_log, "--json", *args)
    assert result.exit_code == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


SITE = {"name": "site", "limits": "3/minute"}


# -- deciding ------------------------------------------------------------------------------------------------


def test_counts_at_the_times_of_the_log(rules: Write, log: Write) -> None:
    """Five requests at once meet a limit of three; spread over minutes they do not."""
    at_once = replayed(rules(SITE), log([line(at=0)] * 5))
    spread = replayed(rules(SITE), log([line(at=i * 120) for i in range(5)]))
    assert (at_once["requests"], at_once["refused"]) == (5, 2)
    assert (spread["requests"], spread["refused"]) == (5, 0)


def test_report_as_json(rules: Write, log: Write) -> None:
    """The report holds totals, times, rules with their limits, and the clients refused most, in their order."""
    lines = [line("192.0.2.1", i) for i in range(5)] + [line("192.0.2.2", i) for i in range(9)]
    two = {"name": "two", "limits": ["4/minute", "100/hour"], "match": {"path": "/nowhere"}}
    report = replayed(rules(SITE, two), log([*lines, line("192.0.2.3", 70)]))
    assert report == {
        "requests": 15,
        "refused": 8,
        "clients": 3,
        "clients_refused": 2,
        "first": "2017-07-14T02:40:00+00:00",
        "last": "2017-07-14T02:41:10+00:00",
        "lines": 15,
        "unreadable": 0,
        "unreadable_examples": [],
        "out_of_order": 0,
        "rules": [
            {
                "name": "site",
                "mode": "enforce",
                "looked_at": 15,
                "refused": 8,
                "delayed": 0,
                "clients_refused": 2,
                "limits": [{"limit": "3/minute", "refused": 8}],
            },
            {
                "name": "two",
                "mode": "enforce",
                "looked_at": 0,
                "refused": 0,
                "delayed": 0,
                "clients_refused": 0,
                "limits": [{"limit": "4/minute", "refused": 0}, {"limit": "100/hour", "refused": 0}],
            },
        ],
        "clients_refused_most": [
            {"client": "192.0.2.2", "requests": 9, "refused": 6, "rules": ["site"]},
            {"client": "192.0.2.1", "requests": 5, "refused": 2, "rules": ["site"]},
        ],
    }


def test_report_for_people(rules: Write, log: Write) -> None:
    """The same as tables: rules, and the clients refused most, as many as asked for."""
    lines = [line(f"192.0.2.{i}") for i in range(1, 5) for _ in range(3 + i)]
    result = run(
        rules(SITE, {"name": "api", "limits": ["9/s", "10/h"], "match": {"path": "/api"}}), log(lines), "--top", 2
    )
    assert result.exit_code == 0
    words = [" ".join(row.split()) for row in result.stdout.splitlines()]
    assert words[:3] == [
        "2017-07-14 02:40:00 to 2017-07-14 02:40:00 UTC",
        "22 requests of 4 clients",
        "10 refused (45.5%) of 4 clients",
    ]
    assert "site 3/minute 22 10 45.5% 4" in words
    assert "api 9/second: 0 0 0 - 0" in words
    assert "The 2 clients refused most" in words
    assert words[-3:-1] == ["192.0.2.4 7 4 57.1% site", "192.0.2.3 6 3 50.0% site"]
    assert result.stderr == ""


def test_one_client_refused(rules: Write, log: Write) -> None:
    """One is said as one."""
    result = run(rules(SITE), log([line()] * 4))
    assert "4 requests of 1 client\n1 refused (25.0%) of 1 client\n" in result.stdout
    assert "Clients refused most" in result.stdout


def test_no_rules_and_no_refusals(rules: Write, log: Write) -> None:
    """Settings without rules refuse nobody, and the report says so without empty tables."""
    result = run(rules(), log([line()]))
    assert result.stdout == (
        "2017-07-14 02:40:00 to 2017-07-14 02:40:00 UTC\n1 request of 1 client\n0 refused (0.0%) of 0 clients\n\n"
    )


def test_all_rules_that_refuse_are_named(rules: Write, log: Write) -> None:
    """A request that two rules refuse is one refusal, told of both."""
    tight = {"name": "tight", "limits": "3/hour"}
    report = replayed(rules(SITE, tight), log([line()] * 5))
    assert report["refused"] == 2
    assert [rule["refused"] for rule in report["rules"]] == [2, 2]
    assert report["clients_refused_most"][0]["rules"] == ["site", "tight"]


def test_shadow_rules_refuse_nobody(rules: Write, log: Write) -> None:
    """A shadow rule is reported apart, with what it would have refused; its refusals are nobody's."""
    settings = rules({**SITE, "mode": "shadow"})
    access_log = log([line()] * 5)
    report = replayed(settings, access_log)
    assert (report["refused"], report["clients_refused"], report["clients_refused_most"]) == (0, 0, [])
    assert report["rules"][0] | {"mode": "shadow", "refused": 2} == report["rules"][0]
    result = run(settings, access_log)
    assert "Shadow rules, which refuse nobody" in result.stdout
    assert "would refuse" in result.stdout
    assert "\nRules" not in result.stdout


def test_count_when_goes_by_the_logged_status(rules: Write, log: Write) -> None:
    """Only responses with the statuses of count_when count, as the log has them."""
    settings = rules({**SITE, "count_when": {"status": 401}})
    fine = replayed(settings, log([line(status=200)] * 9))
    failing = replayed(settings, log([line(status=401)] * 9))
    assert (fine["refused"], failing["refused"]) == (0, 6)


def test_limits_of_some_clients(rules: Write, log: Write) -> None:
    """Limits by key hold for their clients, and are told by limit once they have refused."""
    settings = rules({**SITE, "key": "user", "per_key": {"alice": "6/minute", "bob": "9/minute"}})
    report = replayed(settings, log([line(user=user) for user in ("alice", "carol") for _ in range(8)]))
    assert report["rules"][0]["limits"] == [{"limit": "3/minute", "refused": 5}, {"limit": "6/minute", "refused": 2}]


def test_unknown_keys_are_refused_where_a_rule_says_so(rules: Write, log: Write) -> None:
    """A rule that refuses unknown keys refuses requests of nobody in particular."""
    report = replayed(rules({**SITE, "key": "user", "when_unknown": "refuse"}), log([line(), line(user="alice")]))
    assert (report["refused"], report["rules"][0]["looked_at"]) == (1, 2)


def test_queues_delay(rules: Write, log: Write) -> None:
    """Requests that a queue holds back are counted as delayed, and shown when there are any."""
    queue = {"name": "queue", "limits": "60/minute burst 5", "algorithm": {"name": "leaky-bucket", "mode": "queue"}}
    settings, access_log = rules(queue), log([line()] * 4)
    assert replayed(settings, access_log)["rules"][0]["delayed"] == 3
    assert "delayed" in run(settings, access_log).stdout
    assert "delayed" not in run(rules(SITE), access_log).stdout


# -- features ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("same", "count"),
    [
        (["192.0.2.1", "::ffff:192.0.2.1"], 1),
        (["2001:db8::1", "2001:db8::2", "2001:DB8:0:0:ffff::"], 1),
        (["2001:db8::1", "2001:db8:0:1::1"], 2),
        (["-", "unix:"], 1),
        (["crawler.example.com", "Crawler.example.com", "other.example.com"], 2),
    ],
)
def test_clients_are_told_apart_as_in_the_application(rules: Write, log: Write, same: list[str], count: int) -> None:
    """Addresses are normalised, IPv6 by prefix; logged host names are clients too; no address is one client."""
    assert replayed(rules(SITE), log(line(ip) for ip in same))["clients"] == count


def test_ipv6_prefix_of_the_settings(rules: Write, log: Write) -> None:
    """The prefix in the settings holds for the log."""
    assert (
        replayed(rules(SITE, ipv6_prefix=128), log(line(ip) for ip in ("2001:db8::1", "2001:db8::2")))["clients"] == 2
    )


@pytest.mark.parametrize(
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
    """Each feature that a line holds reaches the rules, and one it does not hold is unknown."""
    settings = rules({**SITE, **rule})
    assert replayed(settings, log([line(**hit)]))["rules"][0]["looked_at"] == 1
    assert replayed(settings, log([line(**missed)]))["rules"][0]["looked_at"] == 0


def test_referer_is_a_feature(rules: Write, log: Write) -> None:
    """The referer is there as the header it came in."""
    text = line().replace('"-" "-"', '"https://example.com/" "-"')
    assert replayed(rules({**SITE, "key": "header:referer"}), log([text, line()]))["rules"][0]["looked_at"] == 1


def test_what_a_log_does_not_tell_is_said(rules: Write, log: Write) -> None:
    """Features that no log holds are named on stderr with the rules that miss them; stdout stays clean."""
    settings = rules(
        {"name": "a", "limits": "5/s", "key": ["email", "region"]},
        {"name": "b", "limits": "5/s", "key": "email", "match": {"host": "example.com", "header:x-a": "1"}},
        {"name": "c", "limits": "5/s", "key": ["ip", "user", "query:a"], "match": {"header:referer": "x"}},
    )
    result = run(settings, log([line()]), "--json")
    assert result.stderr.splitlines() == [
        "the log does not tell email: unknown to a, b in every request",
        "the log does not tell region: unknown to a in every request",
        "the log does not tell header:x-a: unknown to b in every request",
        "the log does not tell host: unknown to b in every request",
    ]
    assert json.loads(result.stdout)["requests"] == 1


def test_another_store_is_not_touched(rules: Write, log: Write) -> None:
    """Whatever store the settings name, replay counts in memory, and says so."""
    result = run(rules(SITE, store="redis://nowhere.invalid:1/0"), log([line()] * 5), "--json")
    assert json.loads(result.stdout)["refused"] == 2
    assert result.stderr == "counted in memory, not in redis\n"


# -- order ---------------------------------------------------------------------------------------------------


def test_lines_that_are_shuffled(rules: Write, log: Write) -> None:
    """A log written in order of completion, or shuffled within its minutes, counts as if it were in order."""
    settings = rules({"name": "steady", "limits": "1/second", "algorithm": "gcra"})
    ordered = [line(at=i) for i in range(60)]
    shuffled = [*ordered[31:], *ordered[:31]]
    assert replayed(settings, log(ordered))["refused"] == 0
    report = replayed(settings, log(shuffled))
    assert (report["refused"], report["out_of_order"]) == (0, 0)


def entry(time: int) -> LogEntry:
    return LogEntry("192.0.2.1", None, time, "GET", Target("/"), 200)


@given(st.lists(st.integers(0, 10**10)), st.integers(1, 10))
def test_order_within_a_bound(times: list[int], within: int) -> None:
    """Every request comes out once; those no further out of place than the bound come out in order."""
    found = [e.time for e in in_order(map(entry, times), within)]
    assert sorted(found) == sorted(times)
    blocks = [t + 100 * (i // within) for i, t in enumerate(t % 100 for t in times)]
    assert [e.time for e in in_order(map(entry, blocks), within)] == sorted(blocks)


def test_order_keeps_equals_as_they_came() -> None:
    """Requests of one second stay in the order of their lines."""
    entries = [entry(5)._replace(status=200 + i) for i in range(20)]
    assert list(in_order(entries, 3)) == entries


def test_one_false_date_spoils_nothing_else() -> None:
    """A line from the far future waits for the end: the others keep their order."""
    times = [e.time for e in in_order(map(entry, [3, 10**10, 2, 5, 4]), 3)]
    assert times == [2, 3, 4, 5, 10**10]


def test_logs_in_the_wrong_order_are_noticed() -> None:
    """Requests that come long after later ones are counted, so that somebody can be told."""
    simulation = Simulation(load_settings({"rules": [SITE]}))
    report = simulation.replay(map(entry, [100, 50, 200, 60]))
    assert report.out_of_order == 2


def test_wrong_order_is_said(rules: Write, log: Write) -> None:
    """Two logs joined newest first get a message."""
    newest_first = [line(at=90_000 + i // 1000) for i in range(10_001)] + [line(at=i) for i in range(5)]
    result = run(rules(), log(newest_first), "--json")
    assert "5 requests came long after later ones" in result.stderr
    assert json.loads(result.stdout)["out_of_order"] == 5


# -- lines that cannot be read -------------------------------------------------------------------------------

BAD = [
    b"\x1b[31mred\x07\xff\xfe\n",
    line().replace("14/Jul", "31/Jun").encode(),
    line(method="\\x16\\x03\\x01").encode(),
    b'192.0.2.1 - - [14/Jul/2017:02:40:00 +0000] "-" 408 0 "-" "-"\n',
    b"A" * (3 * LONGEST_LINE) + b"\n",
    b"B" * (LONGEST_LINE + 1) + b"\n",
    b"\x00\x01",
]


def test_unreadable_lines_are_counted_and_shown(rules: Write, log: Write) -> None:
    """Lines that are no requests are counted; the first few are shown with their number and why."""
    content = b"\n".join([line().encode().strip(), b"", *[bad.strip(b"\n") for bad in BAD], line().encode()])
    result = run(rules(SITE), log(content), "--json")
    report = json.loads(result.stdout)
    assert (report["requests"], report["lines"], report["unreadable"]) == (2, 10, 7)
    shown = [(example["number"], example["why"]) for example in report["unreadable_examples"]]
    assert shown == [
        (3, "not a line of the common or combined format"),
        (4, "the date is impossible"),
        (5, "the request is not HTTP"),
        (6, "the request is not HTTP"),
        (7, "longer than 65536 bytes"),
    ]
    assert all(len(example["text"]) <= 200 for example in report["unreadable_examples"])
    first, *examples = result.stderr.splitlines()
    assert first == "7 of 10 lines could not be read, the first of them:"
    assert examples[0] == "  line 3: not a line of the common or combined format: \\x1b[31mred\\x07\ufffd\ufffd"
    assert len(examples) == 5
    assert all(text.isprintable() and len(text) < 200 for text in examples)


def test_nothing_in_a_log_acts_on_the_terminal(rules: Write, log: Write) -> None:
    """Escape sequences, markup and line breaks in what clients wrote are shown, not obeyed."""
    nasty = "[bold]\\x1b[31m\\nx:smile:\\xe2\\x80\\xae"
    result = run(rules(SITE), log([line(nasty)] * 5 + ["\x1b[2J\x9b\u202e\n"]))
    assert result.stdout.replace("\n", "").isprintable()
    assert result.stderr.replace("\n", "").isprintable()
    assert "[bold]\\x1b[31m\\nx:smile:\\u202e" in result.stdout


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", os.urandom(5000).replace(b"\x1f\x8b", b""), b"\x7fELF" + b"\x00" * 999]
)
def test_logs_without_requests(rules: Write, log: Write, content: bytes) -> None:
    """An empty log, or a file that is no log at all, is something wrong, and said."""
    result = run(rules(SITE), log(content))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith("access.log: there is no request in it\n")


def test_last_line_without_an_end(rules: Write, log: Write) -> None:
    """A last line that was not ended counts."""
    assert replayed(rules(SITE), log([line(), line().rstrip("\n")]))["requests"] == 2


# -- files ---------------------------------------------------------------------------------------------------


def test_gzip_by_its_first_bytes(rules: Write, log: Write) -> None:
    """A compressed log is known by its bytes and not by its name, and so is a plain one."""
    lines = "".join([line()] * 5).encode()
    for name in ("access.log", "access.log.gz"):
        assert replayed(rules(SITE), log(gzip.compress(lines), name))["requests"] == 5
        assert replayed(rules(SITE), log(lines, name))["requests"] == 5
    joined = gzip.compress(lines) + gzip.compress(lines)
    assert replayed(rules(SITE), log(joined))["requests"] == 10


def test_stdin(rules: Write) -> None:
    """ "-" reads the log from stdin, plain or compressed."""
    lines = "".join([line()] * 5).encode()
    for content in (lines, gzip.compress(lines)):
        result = run(rules(SITE), "-", "--json", input=content)
        assert json.loads(result.stdout)["requests"] == 5


def test_pipe(rules: Write) -> None:
    """A real pipe is read just so, and so is one that is read through a file's name."""
    content = gzip.compress("".join([line()] * 1200).encode())
    for name in ("-", "/dev/stdin"):
        args = [str(PROGRAM), "replay", str(rules(SITE)), name, "--json"]
        done = subprocess.run(args, input=content, capture_output=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")
        assert json.loads(done.stdout)["requests"] == 1200


def damaged() -> list[bytes]:
    whole = gzip.compress(b"".join(line(at=i).encode() for i in range(2000)))
    body = zlib.compress(os.urandom(100))
    wrong_sum = whole[:-8] + struct.pack("<LL", 0, 0)
    return [
        whole[:-100],
        whole[:20],
        b"\x1f\x8b",
        wrong_sum,
        whole + b"trailing",
        b"\x1f\x8b\x08\x00" + b"\xff" * 50,
        body,
    ]


@pytest.mark.parametrize("number", range(6))
def test_damaged_compression(rules: Write, log: Write, number: int) -> None:
    """A compressed log that is cut off or broken gives no half report, but a message and exit code 1."""
    result = run(rules(SITE), log(damaged()[number]))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "access.log: cannot be read to its end: " in result.stderr


def test_log_that_is_not_there(rules: Write, tmp_path: Path) -> None:
    """A missing log and a folder in its place are misuse."""
    for path in (tmp_path / "nothing.log", tmp_path):
        result = run(rules(SITE), path)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "Invalid value for 'ACCESS_LOG'" in result.stderr


def test_bad_settings(tmp_path: Path, log: Write) -> None:
    """A mistake in the settings ends with its place before the log is read."""
    path = tmp_path / "bad.toml"
    path.write_text("[[rules]]\nlimits = 5")
    result = run(path, log([line()]))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Error: {path}: rules[0].limits: ")


def test_progress_is_told(tmp_path: Path) -> None:
    """A reader tells how many lines and bytes are behind it; of what has no position, it tells lines alone."""

    class Pipe(io.BytesIO):
        def tell(self) -> int:
            raise OSError(29, "Illegal seek")

    content = (line() * 1000).encode()
    for file, position in ((io.BytesIO(content), len(content)), (Pipe(content), 0)):
        told: list[tuple[int, int]] = []
        assert len(list(LogReader(file, lambda *progress: told.append(progress)))) == 1000  # noqa: B023
        assert [lines for lines, _ in told] == [500, 1000]
        assert told[-1][1] == position
        assert not file.closed


def test_progress_bar_only_on_a_terminal(rules: Write, log: Write) -> None:
    """On a terminal stderr shows a bar; anywhere else it stays empty. stdout is the same both times."""
    args = [str(PROGRAM), "replay", str(rules(SITE)), str(log([line()] * 600))]
    plain = subprocess.run(args, capture_output=True, check=True, timeout=60)
    assert plain.stderr == b""
    ours, theirs = os.openpty()
    shown = subprocess.run(args, stdout=subprocess.PIPE, stderr=theirs, check=True, timeout=60)
    os.close(theirs)
    bar = os.read(ours, 100_000)
    os.close(ours)
    assert b"replaying" in bar
    assert shown.stdout == plain.stdout


# -- the picture ---------------------------------------------------------------------------------------------

PNG = b"\x89PNG\r\n\x1a\n"


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == PNG
    width, height = struct.unpack(">LL", head[16:24])
    return width, height


def test_plot(rules: Write, log: Write, tmp_path: Path) -> None:
    """--plot writes one PNG, says where, and grows with the number of clients shown."""
    access_log = log(line(f"192.0.2.{i}", at=i * 60) for i in range(1, 40) for _ in range(5))
    small, large = tmp_path / "small.png", tmp_path / "large.PNG"
    result = run(rules(SITE), access_log, "--plot", small, "--top", 3)
    assert (result.exit_code, result.stderr) == (0, f"drawn: {small}\n")
    assert run(rules(SITE), access_log, "--plot", large, "--top", 30).exit_code == 0
    assert png_size(small)[0] == png_size(large)[0]
    assert png_size(small)[1] < png_size(large)[1]


@pytest.mark.parametrize("span", [0, 1, 90, 3_000, 86_400, 40 * 86_400, 300 * 86_400, 20 * 365 * 86_400, 7 * 10**9])
def test_plot_of_any_span(rules: Write, log: Write, tmp_path: Path, span: int) -> None:
    """A second, a year or a false date centuries ahead: there is a picture."""
    picture = tmp_path / "a.png"
    result = run(rules(SITE), log([line(at=0), line(at=span)]), "--plot", picture)
    assert result.exit_code == 0
    assert png_size(picture)[0] > 1000


def test_plot_of_odd_names(rules: Write, log: Write, tmp_path: Path) -> None:
    """Names that look like formulas or hold letters no font has are drawn as they stand, without a warning."""
    lines = [line(name) for name in ("$\\\\frac{$", "\u5ba2\u6237", "a" * 500, "\\x1b[0m") for _ in range(5)]
    assert run(rules(SITE), log(lines), "--plot", tmp_path / "a.png").exit_code == 0


@pytest.mark.parametrize("name", ["a.svg", "a", "nowhere/a.png"])
def test_plot_in_a_place_that_cannot_be(rules: Write, log: Write, tmp_path: Path, name: str) -> None:
    """A picture that could not be written is refused before the work: exit code 2."""
    result = run(rules(SITE), log([line()]), "--plot", tmp_path / name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Invalid value for '--plot'" in result.stderr


def test_plot_without_its_extra(rules: Write, log: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without matplotlib --plot ends at once with the pip line and exit code 2; without --plot it is not missed."""
    monkeypatch.delitem(sys.modules, "ratelimit_mw.cli.plot", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"] or ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    result = run(rules(SITE), log([line()]), "--plot", tmp_path / "a.png")
    assert (result.exit_code, result.stdout) == (2, "")
    assert 'pip install "ratelimit-mw[plot]"' in result.stderr
    assert run(rules(SITE), log([line()])).exit_code == 0


# -- against the limiter itself ------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 200), st.sampled_from("abc"), st.sampled_from([200, 401])), max_size=60))
def test_agrees_with_a_limiter(requests: list[tuple[int, str, int]]) -> None:
    """Replay refuses what a limiter refuses that is asked at those times and told those outcomes."""
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
    refused = []
    for at, client, status in requests:
        now[0] = (START + at) * 1_000_000
        verdict = limiter.hit({"ip": client, "method": "GET", "path": "/"})
        limiter.conclude(verdict, status)
        refused += [] if verdict else [START + at]
    entries = [LogEntry(client, None, START + at, "GET", Target("/"), status) for at, client, status in requests]
    report = Simulation(settings).replay(entries)
    assert list(report.refused_times) == refused
    assert report.refused.total() == len(refused)
