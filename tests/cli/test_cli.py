"""All commands: exit codes, streams, messages instead of tracebacks, and one renderer of text and JSON."""

import json
import os
import re
import resource
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import click
import pytest
from command_line import EXAMPLE, Files, Write, line, run, start
from tables import each

from ratelimit_mw import Limiter, __version__
from ratelimit_mw.cli import group, output
from ratelimit_mw.cli.group import ratelimit_mw
from ratelimit_mw.cli.output import print_table, printable
from ratelimit_mw.clock import SECOND, now_us
from ratelimit_mw.errors import MissingExtraError
from ratelimit_mw.operations import Answer, Cell, Table
from ratelimit_mw.settings import schema
from ratelimit_mw.traffic import TrafficLog


def test_schema_version_and_help() -> None:
    """The command prints the schema of the package, and its name and version. Alone, it prints its help."""
    result = run("schema")
    assert (result.exit_code, json.loads(result.stdout)) == (0, schema())
    assert run("--version").stdout == f"ratelimit-mw, version {__version__}\n"
    result = run()
    assert (result.exit_code, "replay" in result.output) == (2, True)


SHOP = """
from pathlib import Path
from ratelimit_mw.wsgi import RateLimitMiddleware
settings = {
    "store": f"lmdb://{Path(__file__).parent}/limits",
    "trusted_proxies": ["192.0.2.1"],
    "rules": [{"name": "shop", "key": ["user|ip"], "limits": "5/minute"}],
}
app = RateLimitMiddleware(lambda environ, start: [], settings=settings, features={"user": lambda environ: None})
"""
"""An application without notes, for ``check --strict``."""
BY_HEADER = """
[[rules]]
name = "keys"
key = ["header:x-api-key"]
limits = ["5/minute"]
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["check", "diff", "explain", "replay", "schema"])
def test_help_has_examples_that_run(name: str, folder: Path) -> None:
    files = Files(folder)
    files.settings(EXAMPLE.read_text() + BY_HEADER)
    files.settings("[tool.ratelimit_mw]\nstore = 'memory://'", "pyproject.toml")
    files.settings(EXAMPLE.read_text(), "new.toml")
    for log in ("access.log", "access.log.2.gz", "caddy.log"):
        files.log([line()], log)
    (folder / "shop.py").write_text(SHOP)
    sys.modules.pop("shop", None)
    text = run(name, "--help").stdout
    examples = [example.strip() for example in text.partition("Examples:\n")[2].splitlines() if example.strip()]
    assert examples
    for example in examples:
        _, _, command = example.partition("ratelimit-mw ")
        args = shlex.split(command.partition(">")[0])
        assert run(*args, input=line()).exit_code == 0, example


@each("command", ["check", "explain", "replay"])
def test_files_that_are_not_there(command: str, tmp_path: Path) -> None:
    """A missing file, and a folder instead of a file, give exit code 2 and a message. So does no file at all."""
    for words in ([tmp_path / "nothing.toml"], [tmp_path], []):
        result = run(command, *words, *{"check": [], "explain": ["GET", "/"], "replay": ["-"]}[command])
        assert (result.exit_code, result.stdout, "FILE" in result.stderr) == (2, "", True)


def test_file_that_may_not_be_read(settings: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the file system gives a message with the file name."""

    def reject(_path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", "secret.toml")

    path = settings("")
    monkeypatch.setattr("ratelimit_mw.settings.files.read_regular", reject)
    result = run("check", path)
    message = f"Error: settings file '{path}' cannot be read: Permission denied\n"
    assert result.exit_code == 1
    assert result.stderr.startswith(message)


def test_a_library_that_a_file_needs(settings: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing library is named with the command that installs it, and exit code 2."""
    for extra, module, file in (
        ("yaml", "yaml", settings("rules: []", "a.yaml")),
        ("lmdb", "ratelimit_mw.stores.lmdb.store", settings('store = "lmdb:///var/limits"')),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        result = run("check", file)
        assert (result.exit_code, f'pip install "ratelimit-mw[{extra}]"' in result.stderr) == (2, True)


@each(("command", "exit_code"), [("check", 1), ("explain", 2)])
def test_json_option_prints_errors_as_json(command: str, exit_code: int, settings: Write) -> None:
    """An error of the settings and a missing argument are JSON on stdout, and a message on stderr."""
    result = run(command, settings("rules = 5"), "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, list(found)) == (exit_code, ["error"])
    assert f"Error: {found['error']}\n" in result.stderr


NASTY = "\x1b]0;x\x07\x1b[31m[bold]x:smile:\u202e\x9b"
SHOWN = "\\x1b]0;x\\x07\\x1b[31m[bold]x:smile:\\u202e\\x9b"


def test_text_of_a_file_does_not_control_the_terminal(settings: Write) -> None:
    """Escape sequences and markup of settings, arguments and errors are printed as text."""
    key = "key = ['x', 'user as raw']"
    path = settings(f"[[rules]]\nname = '[red]a'\nlimits = '5/s'\nmatch = {{ x = [{json.dumps(NASTY)}] }}\n{key}")
    features = "--feature", f"x={NASTY}", "--feature", "user=a\nb"  # a key cannot forge another row of a table
    for result in (run("check", path), run("explain", path, "GET", f"/{NASTY}", *features)):
        assert result.exit_code == 0
        assert result.stdout.replace("\n", "").isprintable()
        assert "[red]a" in result.stdout
        assert SHOWN in result.stdout
    assert "user=a\\nb" in result.stdout
    result = run("check", settings('[[rules]]\nlimits = "5/\\u001b[31m"'))
    assert result.exit_code == 1
    assert all(map(str.isprintable, result.stderr.split("\n")))


@pytest.mark.slow
@each("library", ["click", "rich"])
def test_a_missing_extra_is_named(library: str) -> None:
    """Without click or rich the command prints how to install them, with exit code 2."""
    code = f"import sys; sys.modules[{library!r}] = None; from ratelimit_mw.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=180)
    assert (done.returncode, done.stdout) == (2, "")
    error = MissingExtraError("the command ratelimit-mw", "cli")
    assert done.stderr.splitlines() == [str(error), *error.__notes__]


@pytest.mark.slow
def test_closed_pipe_ends_the_command_quietly() -> None:
    """The reader of a pipe may end first, as ``head`` does."""
    for args in (["check", EXAMPLE], ["--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        done = start(*args, stdout=writer)
        os.close(writer)
        assert done.stderr == ""


@pytest.mark.slow
def test_full_disk_is_an_error_with_a_message(tmp_path: Path) -> None:
    """The exit code is 1. The JSON of the error cannot be written, either."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for args in (["check", EXAMPLE], ["check", EXAMPLE, "--json"]):
        with (tmp_path / "small").open("w") as small:
            done = start(*args, stdout=small, preexec_fn=no_room, env=environment)
        assert (done.returncode, done.stderr) == (1, "Error: File too large\n")


@pytest.mark.slow
def test_a_closed_stdout_hides_no_result() -> None:
    """A job may start the command without one. Its exit code and its messages are as ever."""
    assert start("check", EXAMPLE, preexec_fn=close_stdout).returncode == 0


def close_stdout() -> None:
    os.close(1)


def no_room() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


@pytest.mark.slow
def test_terminal_without_unicode_gets_escape_sequences(settings: Write) -> None:
    """This happens when stdout is ASCII only."""
    path = settings("[[rules]]\nname = 'a'\nlimits = '5/s'\nmatch = { path = '/caf\u00e9' }")
    done = start("check", path, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "/caf\\xe9" in done.stdout


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


@pytest.mark.parametrize("name", [name for name in CASES if name != "forecast"])
def test_each_line_fits_at_80_columns(name: str, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, no line of an answer, a note or a help text is longer."""
    words = [*name.split(), *(files.get(word, word) for word in CASES[name])]
    monkeypatch.setattr(output, "columns_of", lambda _stream: 80)
    shown = run(*words).output + run(*name.split(), "--help", terminal_width=80).stdout
    assert [each for each in shown.splitlines() if len(each.rstrip()) > 80] == []


@pytest.mark.parametrize("group", ["", "override", "traffic"])
def test_the_summary_of_each_command_is_whole_at_80_columns(group: str) -> None:
    summaries = run(*group.split(), "--help", terminal_width=80).stdout.partition("Commands:\n")[2]
    assert summaries
    assert [line for line in summaries.splitlines() if not line.endswith(".")] == []


def test_a_narrow_terminal_shows_each_character(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells are folded in the width of their column. The widest table has ten columns."""
    monkeypatch.setattr(output, "columns_of", lambda _stream: output._NARROWEST)
    row = {letter.upper(): letter * (1 + 7 * i) for i, letter in enumerate("abcdefghij")}
    print_table(Table("Rules", [row]))
    title, *lines = capsys.readouterr().out.splitlines()
    assert (title, max(map(len, lines))) == ("Rules", 40)
    assert Counter(re.sub("[ ─]", "", "".join(lines))) == Counter("".join([*row, *row.values()]))


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
