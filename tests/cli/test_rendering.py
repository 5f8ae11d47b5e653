"""One renderer prints the answers of all commands, as text or as JSON, and sets the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import EXAMPLE, Files, line, run

from ratelimit_mw.cli import errors
from ratelimit_mw.cli.output import Answer, Cell, Table, number_text, printable

CASES = {
    "check": ["FILE"],
    "explain": ["FILE", "POST", "/login", "--feature=ip=192.0.2.7", "--feature=email=a@example.com"],
    "traffic expire": ["LOG"],
}
"""The words of each command that returns an answer."""


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """The answers that are printed."""
    printed: list[Answer] = []
    print_answer = errors.print_answer

    def record(answer: Answer, as_json: bool) -> None:
        printed.append(answer)
        print_answer(answer, as_json)

    monkeypatch.setattr(errors, "print_answer", record)
    return printed


@pytest.mark.parametrize("name", CASES)
def test_an_answer_as_text_and_as_json(name: str, tmp_path: Path, answers: list[Answer]) -> None:
    """Tables and lines, or JSON, are on stdout, and notes on stderr. What is wrong gives exit code 1."""
    files = {"FILE": Files(tmp_path).settings(EXAMPLE.read_text()), "LOG": f"sqlite:///{tmp_path}/traffic.db"}
    run("traffic", "import", files["LOG"], Files(tmp_path).log([line()]))
    words = [*name.split(), *(files.get(word, word) for word in CASES[name])]
    text = run(*words)
    program = run(*words, "--json")
    shown, sent = answers[-2:]
    assert json.loads(program.stdout) == json.loads(json.dumps(sent.json))
    lines = iter(text.stdout.splitlines())
    for part in parts_of(shown):
        assert any(part in line for line in lines), part
    for result, answer in ((text, shown), (program, sent)):
        assert result.exit_code == answer.found_wrong
        assert result.stderr.splitlines() == list(dict.fromkeys(answer.notes))


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
        return number_text(cell)
    assert not isinstance(cell, float)
    return printable(cell if isinstance(cell, str) else next(iter(cell), ""))
