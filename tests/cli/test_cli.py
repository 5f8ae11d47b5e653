"""All commands: exit codes, streams, and messages instead of tracebacks."""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import EXAMPLE, Files, Write, line, run, start
from tables import each

import ratelimit_mw
from ratelimit_mw.errors import MissingExtraError
from ratelimit_mw.settings import schema


def test_schema_version_and_help() -> None:
    """The command prints the schema of the package, and its name and version. Alone, it prints its help."""
    result = run("schema")
    assert (result.exit_code, json.loads(result.stdout)) == (0, schema())
    assert run("--version").stdout == f"ratelimit-mw, version {ratelimit_mw.__version__}\n"
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
    """The examples at the end of a help text run as printed."""
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
    monkeypatch.setattr("ratelimit_mw.settings.files.read_bytes", reject)
    result = run("check", path)
    message = f"Error: settings file '{path}' cannot be read: Permission denied\n"
    assert result.exit_code == 1
    assert result.stderr.startswith(message)


def test_yaml_without_its_extra(settings: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing library is named with the command that installs it, and exit code 2."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    result = run("check", settings("rules: []", "a.yaml"))
    assert result.exit_code == 2
    assert 'pip install "ratelimit-mw[yaml]"' in result.stderr


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
def test_without_its_extra(library: str) -> None:
    """Without click or rich the command prints how to install them, with exit code 2."""
    code = f"import sys; sys.modules[{library!r}] = None; from ratelimit_mw.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=180)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{MissingExtraError('the command ratelimit-mw', 'cli')}\n"


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
    """The exit code is 1."""
    with (tmp_path / "small").open("w") as small:
        done = start("check", EXAMPLE, stdout=small, preexec_fn=no_room)
    assert (done.returncode, done.stderr) == (1, "Error: File too large\n")


def no_room() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


@pytest.mark.slow
def test_terminal_without_unicode_gets_escape_sequences(settings: Write) -> None:
    """This happens when stdout is ASCII only."""
    path = settings("[[rules]]\nname = 'a'\nlimits = '5/s'\nmatch = { path = '/caf\u00e9' }")
    done = start("check", path, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "/caf\\xe9" in done.stdout
