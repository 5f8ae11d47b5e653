"""One renderer prints the answers of all commands, as text or as JSON, and sets the exit code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import click
import pytest
from command_line import Files, line, run

from ratelimit_mw import Limiter
from ratelimit_mw.cli import group, output
from ratelimit_mw.cli.group import ratelimit_mw
from ratelimit_mw.cli.output import print_table, printable
from ratelimit_mw.clock import SECOND, now_us
from ratelimit_mw.operations import Answer, Cell, Table
from ratelimit_mw.traffic import TrafficLog

CASES = {
    "check": ["FILE"],
    "replay": ["FILE", "ACCESS", "--suggest=1%"],
    "diff": ["FILE", "STRICT", "ACCESS"],
    "explain": ["FILE", "POST", "/login", "--feature=ip=192.0.2.7", "--feature=email=a@example.com"],
    "traffic show": ["LOG"],
    "traffic import": ["LOG", "ACCESS"],
    "inspect": ["FILE", "--rejected"],
    "reset": ["FILE", "login", "ip=192.0.2.7", "email=a@example.com"],
    "ban": ["FILE", "banning", "ip=192.0.2.7", "--for=2h"],
    "unban": ["FILE", "banning", "ip=192.0.2.7"],
    "bans": ["FILE"],
    "override set": ["FILE", "login", "ip=192.0.2.7", "email=a@example.com", "9/minute"],
    "override list": ["FILE"],
    "override remove": ["FILE", "login", "ip=192.0.2.7", "email=a@example.com"],
    "override clear": ["FILE"],
    "report": ["FILE"],
    "top": ["FILE", "--limit=3"],
    "forecast": ["LOG", "busy"],
}
"""The words of each command that returns an answer."""


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """The answers that are printed."""
    printed: list[Answer] = []
    print_answer = group.print_answer

    def record(answer: Answer, as_json: bool) -> None:
        printed.append(answer)
        print_answer(answer, as_json)

    monkeypatch.setattr(group, "print_answer", record)
    return printed


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A settings file whose store and log have counts, and a traffic log, in the current folder."""
    monkeypatch.chdir(tmp_path)
    log = "sqlite:///traffic.db"
    rules = [
        {"name": "login", "match": {"path": "/login"}, "key": ["email", "ip"], "limits": "1/hour"},
        {"name": "banning", "limits": "9/hour", "ban": {"after": 9, "within": "10m", "for": "1h"}},
    ]
    options = {"store": f"lmdb://{tmp_path}/limits", "traffic_log": log, "traffic_clients": True}
    file = Files(tmp_path).rules(*rules, **options, store_timeout="10s")
    limiter = Limiter.from_settings(file.name)
    for _ in range(2):
        limiter.hit({"path": "/login", "ip": "192.0.2.7", "email": "a@example.com"})
    limiter.clients.ban("banning", {"ip": "192.0.2.7"})
    limiter.close()
    with closing(TrafficLog(log)) as record:
        for hour in range(4 * 24):
            record.record("busy", n=30 if hour % 24 < 9 else 6, at=now_us() / SECOND - hour * 3600)
    strict = Files(tmp_path).settings(f'[lists.deny]\nip = ["{line().split()[0]}"]', "strict.toml")
    access_log = Files(tmp_path).log([line()])
    return {"FILE": file.name, "STRICT": strict.name, "LOG": log, "ACCESS": access_log.name}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "forecast")) for name in CASES]
)
def test_an_answer_as_text_and_as_json(name: str, files: dict[str, str], answers: list[Answer]) -> None:
    """Tables and lines, or JSON, are on stdout, and notes on stderr. What is wrong gives exit code 1."""
    words = [*name.split(), *(files.get(word, word) for word in CASES[name])]
    text = run(*words)
    program = run(*words, "--json")
    shown, sent = answers
    assert json.loads(program.stdout) == json.loads(json.dumps(sent.json))
    lines = iter(text.stdout.splitlines())
    for part in parts_of(shown):
        assert any(part in line for line in lines), part
    for result, answer in ((text, shown), (program, sent)):
        assert result.exit_code == answer.found_wrong
        assert result.stderr.splitlines() == list(dict.fromkeys(answer.notes))


def in_any_second(text: str) -> str:
    """Return a text without the seconds of its times."""
    return re.sub(r":\d\d\b", ":00", text)


@pytest.mark.parametrize("name", [name for name in CASES if name != "forecast"])
def test_nothing_is_cut_at_80_columns(name: str, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, each line of an answer, a message and a help text fits, with whole words."""
    words = [*name.split(), *(files.get(word, word) for word in CASES[name])]
    wide = run(*words)
    monkeypatch.setattr(output, "columns_of", lambda _stream: 80)
    narrow, wrong = run(*words), run(*words, f"--{'wrong-option-' * 9}")
    shown = [narrow.stdout, narrow.stderr, wrong.stderr, run(*name.split(), "--help", terminal_width=80).stdout]
    assert [each for each in "\n".join(shown).splitlines() if len(each.rstrip()) > 80 and " " in each.strip()] == []
    whole = in_any_second(wide.stdout).split()
    long = [word for word in whole if len(word) > 60]  # no column has room for the path of a folder of this test
    assert [
        word for word in in_any_second(narrow.stdout).strip("─").split() if word not in whole and word not in str(long)
    ] == []


def test_a_terminal_too_narrow_for_whole_words_gets_a_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is a list of its cells, too, where a column would have less than a fifth of its longest line.

    Where a word is longer than the terminal, it is folded.
    """
    monkeypatch.setattr(output, "columns_of", lambda _stream: 30)
    client = {"client": "email=ann@example.com", "next request": "rejected until noon", "left": 7}
    print_table(Table("Clients", [client]))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "Clients",
        *("client        email=ann@exampl", "              e.com"),
        *("next request  rejected until", "              noon"),
        *("left          7", ""),
    ]
    monkeypatch.setattr(output, "columns_of", lambda _stream: 40)
    for words, is_list in ((8, False), (20, True)):
        print_table(Table("Rules", [{"rule": "login", "limits": "word " * words, "algorithm": "sliding-window"}]))
        assert ("rule       login" in capsys.readouterr().out) == is_list, words


def test_every_command_with_json_is_rendered() -> None:
    """A new command needs a case here."""
    assert {
        name for name, each in commands_of(ratelimit_mw) if any(p.name == "json" for p in each.params)
    } == CASES.keys()


def commands_of(parent: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in parent.commands.items():
        if isinstance(command, click.Group):
            yield from commands_of(command, f"{name} ")
        else:
            yield f"{prefix}{name}", command


def parts_of(answer: Answer) -> list[str]:
    """Return texts that are printed one below the other."""
    parts: list[str] = []
    for part in answer.shown:
        if isinstance(part, Table):
            parts += [part.title, *(cell_text(next(iter(row.values()))) for row in part.rows)] if part.rows else []
        else:
            parts.append(printable(part if isinstance(part, str) else part.text, 1000))
    return parts


def cell_text(cell: Cell) -> str:
    if isinstance(cell, int):
        return f"{cell:,}"
    assert not isinstance(cell, float)
    return printable(cell if isinstance(cell, str) else next(iter(cell), ""))
