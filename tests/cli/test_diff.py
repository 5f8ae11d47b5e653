"""``ratelimit-mw diff`` shows the rules that differ, and the requests that the change affects."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import SITE, Files, answer_of, line, lines_of, request_log, rows_of, run
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from ratelimit_mw.cli.output import Failure
from ratelimit_mw.cli.replay.report import ReplayReport, compare
from ratelimit_mw.cli.replay.simulation import Simulation
from ratelimit_mw.cli.source import Source

OLD = """
store = "redis://:password-1@cache:6379/0"
secret = "a secret of 16 characters"

[[rules]]
name = "site"
limits = "3/minute"

[[rules]]
name = "gone"
limits = ["9/minute", "90/hour"]
match = { path = "/gone" }

[[rules]]
name = "same"
limits = "100/minute"
key = "ip"
algorithm = "token-bucket"
match = { path = ["/same"] }
unrouted = true

[rules.per.plan]
free = "5/minute"
"""
NEW = """
store = "redis://:password-2@other:6379/0"
secret = "another secret of 16 characters"
ipv6_prefix = 56

[[rules]]
name = "same"
limits = ["100/60s"]
key = "ip"
algorithm = "token-bucket"
match = { path = ["/same"] }
unrouted = true
per = { plan = { free = "5/minute" } }

[[rules]]
overrides = "login"
limits = "1/minute"

[[rules]]
name = "site"
limits = "2/minute"
mode = "shadow"

[[rules]]
name = "new"
limits = "7/second"
"""


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Writes settings and logs."""
    return Files(tmp_path)


Pair = Callable[[str, str], tuple[Path, Path]]


@pytest.fixture
def pair(files: Files) -> Pair:
    """Writes two settings files."""
    return lambda old, new: (files.settings(old, "old.toml"), files.settings(new, "new.toml"))


def toml(limits: str, more: str = "") -> str:
    return f'[[rules]]\nname = "site"\nlimits = "{limits}"\n{more}\n'


def changes(old: Path, new: Path) -> list[tuple[Any, ...]]:
    answer = answer_of("diff", old, new)
    assert (answer.json["effect"], answer.found_wrong) == (None, False)
    return [tuple(change.values()) for change in answer.json["changes"]]


def test_all_changes_with_their_places(pair: Pair) -> None:
    """Rules are compared by name. A change has the lines that the other file does not have, without secrets."""
    old, new = pair(OLD, NEW)
    store = ['store = "redis://cache:6379/0"'], ['store = "redis://other:6379/0"', "ipv6_prefix = 56"]
    assert [tuple(row.values()) for row in rows_of(answer_of("diff", old, new))] == changes(old, new)
    assert changes(old, new) == [
        ("changed", "(settings)", *store, str(new)),
        ("changed", "site", ['limits = ["3/minute"]'], ['limits = ["2/minute"]', 'mode = "shadow"'], f"{new}:19"),
        ("added", "new", [], ['limits = ["7/second"]'], f"{new}:24"),
        ("added", "overrides login", [], ['limits = "1/minute"'], f"{new}:15"),
        ("removed", "gone", ['limits = ["9/minute", "90/hour"]', 'match = { path = "/gone" }'], [], f"{old}:9"),
    ]


def test_equal_files_do_not_differ(pair: Pair) -> None:
    """Nothing differs, and the exit code is 0."""
    answer = answer_of("diff", *pair(OLD, OLD))
    assert (lines_of(answer), rows_of(answer)) == (["No rule and no setting differs."], [])
    assert (answer.notes, answer.found_wrong) == ((), False)


@each(
    ("old", "new", "rule"),
    [
        (toml("3/minute"), f'[defaults]\nmode = "shadow"\n{toml("3/minute")}', "site"),
        ('limits = "3/minute"', 'limits = "4/minute"', "default"),
        (toml("3/minute"), toml("3/minute", 'per_key = { "a b.c" = "5/minute" }'), "site"),
    ],
)
def test_a_rule_changes_with_its_defaults_and_tables(pair: Pair, old: str, new: str, rule: str) -> None:
    """The setting ``limits`` is the rule named default."""
    assert ("changed", rule) in [change[:2] for change in changes(*pair(old, new))]


def test_rules_in_other_formats(files: Files) -> None:
    """The formats of both files may differ."""
    old, new = files.settings(toml("3/minute"), "old.toml"), files.rules({**SITE, "key": ["user"]})
    assert [change[:4] for change in changes(old, new)] == [("changed", "site", [], ['key = ["user"]'])]
    project = files.settings('[[tool.ratelimit_mw.rules]]\nname = "site"\nlimits = "4/minute"', "pyproject.toml")
    (change,) = changes(old, project)
    assert (change[1], change[3], change[4]) == ("site", ['limits = ["4/minute"]'], f"{project}:1")


def effect(old: Path, new: Path, *logs: Path, is_wrong: bool) -> dict[str, Any]:
    answer = answer_of("diff", old, new, *logs)
    assert answer.found_wrong == is_wrong
    found: dict[str, Any] = answer.json["effect"]
    return found


def test_effect_of_a_lower_limit(pair: Pair, files: Files) -> None:
    """The requests that are newly rejected, by rule and client, are wrong."""
    lines = [line("192.0.2.1")] * 5 + [line("192.0.2.2")] * 2 + [line("192.0.2.3")] * 3
    found = effect(*pair(toml("4/minute"), toml("2/minute")), files.log(lines), is_wrong=True)
    assert found == {
        "requests": 10,
        "first": "2017-07-14T02:40:00+00:00",
        "last": "2017-07-14T02:40:00+00:00",
        "clients": 3,
        "rejected_old": 1,
        "rejected_new": 4,
        "newly_rejected": 3,
        "newly_allowed": 0,
        "clients_newly_rejected": 2,
        "clients_newly_allowed": 0,
        "rules": [{"name": "site", "rejected_old": 1, "rejected_new": 4, "newly_rejected": 3, "newly_allowed": 0}],
        "most_newly_rejected": [
            {"client": "192.0.2.1", "requests": 5, "count": 2, "rules": ["site"]},
            {"client": "192.0.2.3", "requests": 3, "count": 1, "rules": ["site"]},
        ],
        "most_newly_allowed": [],
        "formats": {"combined": 10},
    }


def test_the_tables_show_both_directions(pair: Pair, files: Files) -> None:
    """The tables show rules and clients of both directions."""
    other = '[[rules]]\nname = "{}"\nlimits = "1/minute"\nkey = "header:{}"\n'
    old = toml("2/minute", 'key = "user"\n') + other.format("gone", "referer")
    new = toml("4/minute", 'key = "user"\n') + other.format("new", "user-agent")
    lines = [line("192.0.2.1", user="alice")] * 4 + [line("192.0.2.2", agent="bot")] * 3
    words = (*pair(old, new), files.log(lines))
    answer = answer_of("diff", *words)
    assert ["new", "-", "2", "2", "0"] in [row.split() for row in run("diff", *words).stdout.splitlines()]
    assert lines_of(answer) == [
        "2017-07-14 02:40 to 2017-07-14 02:40 UTC",
        "format: combined",
        "7 requests from 2 clients",
        "2 rejected before, 2 after",
        "2 newly rejected (28.6%) from 1 client",
        "2 newly allowed (28.6%) from 1 client",
        "",
    ]
    assert [tuple(row.values()) for row in rows_of(answer)[-5:]] == [
        ("site", 2, 0, 0, 2),
        ("new", None, 2, 2, 0),
        ("gone", 0, None, 0, 0),
        ("192.0.2.2", 3, 2, ["new"]),
        ("192.0.2.1", 4, 2, ["site"]),
    ]


def test_effect_of_a_deny_list(pair: Pair, files: Files) -> None:
    """A rejection by a list has a row of its own."""
    deny = '[lists.deny]\nip = ["192.0.2.1"]\n'
    found = effect(*pair(toml("9/minute"), deny + toml("9/minute")), files.log([line()]), is_wrong=True)
    changed = {"newly_rejected": 1, "newly_allowed": 0}
    assert found["rules"][0] == {"name": "(deny list)", "rejected_old": None, "rejected_new": None, **changed}


@given(
    st.lists(
        st.tuples(st.integers(0, 90), st.sampled_from("abc"), st.sampled_from([200, 401])), min_size=1, max_size=60
    )
)
def test_comparison_agrees_with_two_replays(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[int, str, int]]
) -> None:
    """Each request is decided as in a replay of one file, and each change of a decision is counted once."""
    old, new = (
        Source.from_settings({"rules": [SITE, {"name": "failures", "limits": limits, "count_when": {"status": 401}}]})
        for limits in ("2/minute", "3/30s")
    )
    lines = [line(f"192.0.2.{ord(who)}", at=at, status=status) for at, who, status in requests]
    log = request_log(Files(tmp_path_factory.mktemp("logs")).log(lines))
    verdicts = []
    for rules in (old, new):
        simulation = Simulation(rules)
        verdicts.append([bool(simulation.decide(entry)) for entry in log.requests("alone")])
    reports = (ReplayReport(log, Simulation(rules), side=side) for side, rules in enumerate((old, new)))
    found = compare(*reports, 10)
    pairs = list(zip(*verdicts, strict=True))
    assert found["newly_rejected"] == pairs.count((True, False))
    assert found["newly_allowed"] == pairs.count((False, True))
    assert [found["rejected_old"], found["rejected_new"]] == [each.count(False) for each in verdicts]


def test_shadow_rules_reject_nothing(pair: Pair, files: Files) -> None:
    """To enforce a shadow rule is to reject."""
    shadow, enforce = toml("2/minute", 'mode = "shadow"'), toml("2/minute")
    log = files.log([line()] * 3)
    assert effect(*pair(shadow, enforce), log, is_wrong=True)["newly_rejected"] == 1
    assert effect(*pair(enforce, shadow), log, is_wrong=False)["newly_allowed"] == 1


def test_features_that_the_log_does_not_have(pair: Pair, files: Files) -> None:
    """The notes are those of both files."""
    old, new = pair(toml("9/minute", 'key = "plan"'), toml("9/minute", 'key = ["plan", "region"]'))
    answer = answer_of("diff", old, new, files.log([line()]))
    assert list(dict.fromkeys(answer.notes)) == [
        "the log does not contain plan: missing in every request for site",
        "the log does not contain region: missing in every request for site",
    ]


def test_a_rule_that_needs_routes_is_refused(pair: Pair, files: Files) -> None:
    """Without a log, the rules are compared all the same."""
    old, new = pair(toml("9/minute"), toml("9/minute", 'key = "endpoint"'))
    with pytest.raises(Failure, match=r"does not contain the endpoint, which site needs.* replay --app MODULE:APP"):
        answer_of("diff", old, new, files.log([line()]))
    assert len(changes(old, new)) == 1
