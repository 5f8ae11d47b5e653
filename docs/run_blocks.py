"""Runs the code blocks of pages, as a reader would: `python docs/run_blocks.py README.md`.

A page is played from top to bottom in an empty folder, once for each label of its tabs. The language of a block decides
how it is run:

* `toml`, `yaml`: loaded as settings. A first line `# NAME` saves it under that name, and restarts the server if there
  is such a file. A file whose name starts with "wrong" has to be rejected.
* `python`: saved (a first line `# NAME.py` names it) and imported. One that defines `app` or `application` is asked
  for `/` six times and has to answer with rate limit headers, unless a view calls `check`. A file named `test_...` or
  `conftest` is only saved.
* `sh`: `ratelimit-mw ...`, `flask ... ratelimit ...` and `curl ...` are run. `curl` sends its request to the
  application of the last `uvicorn`, `gunicorn`, `flask ... run` or `ratelimit-mw serve` line. `export` sets variables.
  `openssl rand` writes a file, `chmod` sets its rights, and `$(cat FILE)` is its text. `pip install` and `make` lines
  are compared with pyproject.toml and the Makefile. `pytest` runs the tests that the page has written so far, and
  `python NAME.py` a program of the page. Any other line is an error.
* `log`: saved under the name in its first line, `# NAME`, without that line.
* `text`: the output of the `python` or `sh` block right before it. A line `…` matches any lines, even none,
  and `…` within a line for any text; all else is compared to the letter, spaces at the ends of lines aside.
* Any other language is there to be read and is not run.

The limiter's clock and `time.time` are fixed at 20.5 seconds past a full minute, so a page has the same output every
time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import inspect
import io
import os
import re
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn
from unittest.mock import patch

import httpx

from ratelimit_mw import ConfigError, clock, load_settings

ROOT = Path(__file__).parents[1]
MOMENT = 1_767_268_820_500_000_000  # nanoseconds; 20.5 seconds after a full minute

LIBRARIES = (
    "django.http",
    "fastapi",
    "flask",
    "matplotlib.figure",
    "ratelimit_mw.cli.group",
    "redis",
    "rich.table",
    "uvicorn",
)

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TAB = re.compile(r"^:::\{tab-item\} ([^\n]+)\n.*?^:::$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# ([\w.-]+\.\w+)\n")
_CAT = re.compile(r"\$\(cat ([\w.-]+)\)")
_REPEATED = re.compile(r"for \w+ in ([\w ]+); do (.*); done")
_SETTINGS = {"toml", "yaml"}


class BlockError(AssertionError):
    """A block whose result differs from the page."""


@dataclass(frozen=True)
class Block:
    """One fenced block and the line of the page that it starts on."""

    language: str
    text: str
    line: int

    @property
    def file_name(self) -> str:
        """The name in its first line, or ""."""
        found = _FILE_NAME.match(self.text)
        return found[1] if found else ""


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page in their order."""
    return [Block(found[1], found[2], page.count("\n", 0, found.start()) + 1) for found in _FENCE.finditer(page)]


def readings(page: str) -> list[str]:
    """The page as each of its readers sees it: for each label of its tabs, without those of other labels."""

    def only(label: str) -> str:
        return _TAB.sub(lambda tab: tab[0] if tab[1] == label else "\n" * tab[0].count("\n"), page)

    return [only(label) for label in dict.fromkeys(_TAB.findall(page))] or [page]


class Player:
    """Plays the blocks of one page in the current folder; keeps what later blocks build on."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}
        self._app: Any = None
        self._server: tuple[str, str] | None = None  # the module and the name of the application that it runs
        self._output: str | None = None

    def play(self, block: Block) -> str:
        """Run one block; a word on what came of it. Raises whatever shows that it does not work."""
        before, self._output = self._output, None
        if block.language in _SETTINGS:
            return self._load(block)
        if block.language == "python":
            return self._import(block)
        if block.language == "sh":
            self._output = "".join(self._shell(line) for line in _lines(block.text))
            return "ran"
        if block.language == "log":
            Path(block.file_name).write_text(block.text.partition("\n")[2])
            return "saved"
        if block.language == "text":
            return _compare(block.text, before)
        return "not run"

    def _load(self, block: Block) -> str:
        path = Path(block.file_name or f"block-{block.line}.{block.language}")
        is_changed = path.exists() and path.read_text() != block.text
        path.write_text(block.text)
        try:
            load_settings(path)
        except ConfigError as error:
            if path.name.startswith("wrong"):
                return f"rejected: {error}"
            raise
        if path.name.startswith("wrong"):
            raise BlockError(f"{path} loads; a file named wrong... must be rejected")
        if is_changed and self._server:
            self._app = getattr(self._imported(self._server[0]), self._server[1])
        return "loaded"

    def _import(self, block: Block) -> str:
        path = Path(block.file_name or f"block_{block.line}.py")
        path.write_text(block.text)
        if path.stem.startswith(("test_", "conftest")):
            return "saved"
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            module = self._imported(path.stem)
        self._output = out.getvalue()
        app = getattr(module, "app", None) or getattr(module, "application", None)
        return "ran" if app is None or re.search(r"\bcheck[(.]", block.text) else f"app {_probe(app)}"

    def _imported(self, name: str) -> ModuleType:
        """Import a program of the page, even if it was imported before."""
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        if "settings.configure(" in Path(f"{name}.py").read_text():
            _forget_django()
        self._modules[name] = importlib.import_module(name)
        return self._modules[name]

    def _shell(self, line: str) -> str:
        if repeated := _REPEATED.fullmatch(line):
            return "".join(self._shell(repeated[2]) for _ in repeated[1].split())
        line = _CAT.sub(lambda found: Path(found[1]).read_text().strip(), line)
        words = shlex.split(line.removesuffix("&"), comments=True)
        if not words:
            return ""
        command = getattr(self, "_run_" + words[0].replace("-", "_"), None)
        if command is None:
            raise BlockError(f"cannot check the command {line!r}")
        return str(command(words[1:]))

    def _run_export(self, words: list[str]) -> str:
        os.environ.update(word.replace("$PWD", str(Path.cwd())).split("=", 1) for word in words)
        return ""

    def _run_openssl(self, words: list[str]) -> str:
        """`openssl rand -hex 16 > FILE` writes a random text to a file."""
        kind, form, size, into, path = words
        if (kind, form, into) != ("rand", "-hex", ">"):
            raise BlockError(f"cannot check openssl {' '.join(words)}")
        Path(path).write_text(secrets.token_hex(int(size)) + "\n")
        return ""

    def _run_chmod(self, words: list[str]) -> str:
        mode, path = words
        Path(path).chmod(int(mode, 8))
        return ""

    def _run_ratelimit_mw(self, words: list[str]) -> str:
        from click.testing import CliRunner

        from ratelimit_mw.cli.group import ratelimit_mw

        with patch("uvicorn.run") as served:
            result = CliRunner().invoke(ratelimit_mw, words, prog_name="ratelimit-mw", terminal_width=80)
        if served.called:
            self._app = served.call_args.args[0]
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        expected = 1 if any(word.startswith("wrong") for word in words) else 0
        if result.exit_code != expected:
            raise BlockError(f"exit {result.exit_code}, expected {expected}: {result.output}")
        return result.output

    def _run_curl(self, words: list[str]) -> str:
        parser = argparse.ArgumentParser("curl")
        parser.add_argument("-i", "--include", action="store_true")
        parser.add_argument("-X", "--request")
        parser.add_argument("-d", "--data")
        parser.add_argument("--json")
        parser.add_argument("-H", "--header", action="append", default=[])
        parser.add_argument("url")
        asked = parser.parse_args(words)
        given = (re.split(r":\s*", header, maxsplit=1) for header in asked.header)
        headers = {name.lower(): value for name, value in given}
        if asked.json is not None:
            asked.data, headers = asked.json, {"content-type": "application/json", **headers}
        if asked.data is not None:
            headers = {"content-type": "application/x-www-form-urlencoded", **headers}
        method = asked.request or ("GET" if asked.data is None else "POST")
        response = ask(self._app, method, asked.url, {"accept": "*/*", **headers}, content=asked.data)
        head = [f"HTTP/1.1 {response.status_code} {response.reason_phrase}"]
        head += [f"{name.decode()}: {value.decode()}" for name, value in response.headers.raw]  # as they are spelled
        return "\n".join([*head, "", response.text]) if asked.include else response.text

    def _run_uvicorn(self, words: list[str]) -> str:
        module, _, name = next(word for word in words if ":" in word).partition(":")
        self._server, self._app = (module, name), getattr(self._modules[module], name)
        return ""

    _run_gunicorn = _run_uvicorn

    def _run_flask(self, words: list[str]) -> str:
        self._app = self._modules[words[words.index("--app") + 1]].app
        if words[-1] == "run":
            return ""
        result = self._app.test_cli_runner().invoke(args=words[2:])
        if result.exit_code:
            raise BlockError(f"exit {result.exit_code}: {result.output}")
        return str(result.output)

    @staticmethod
    def _run_pytest(words: list[str]) -> str:
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # the others take most of the time
        return _run_by_python("-m", "pytest", "-p", "no:cacheprovider", "-p", "pytest_ratelimit_mw", *words)

    @staticmethod
    def _run_python(words: list[str]) -> str:
        return _run_by_python(*words)

    @staticmethod
    def _run_pip(words: list[str]) -> str:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        found = re.fullmatch(r"([\w-]+|\.)(?:\[([\w,]+)\])?", words[1])
        if words[0] != "install" or found is None or found[1] not in (project["name"], "."):
            raise BlockError(f"expected the installation of {project['name']}; got {words}")
        missing = set((found[2] or "").split(",")) - {"", *project["optional-dependencies"]}
        if missing:
            raise BlockError(f"there is no extra {missing}")
        return ""

    @staticmethod
    def _run_make(words: list[str]) -> str:
        if not re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE):
            raise BlockError(f"the Makefile has no target {words[0]}")
        return ""


def ask(
    app: Any,
    method: str,
    url: str,
    headers: dict[str, str] | None = None,
    client: str = "127.0.0.1",
    content: str | None = None,
) -> httpx.Response:
    """One request to an ASGI or WSGI application, without a server."""
    if not (inspect.iscoroutinefunction(app) or inspect.iscoroutinefunction(type(app).__call__)):
        with httpx.Client(transport=httpx.WSGITransport(app, remote_addr=client)) as wsgi:
            return wsgi.request(method, url, headers=headers, content=content)

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(client, 50_000))
        async with httpx.AsyncClient(transport=transport) as asgi:
            return await asgi.request(method, url, headers=headers, content=content)

    return asyncio.run(asked())


def _probe(app: Any) -> str:
    """The statuses of six requests from a client that the page knows nothing of."""
    responses = [ask(app, "GET", "http://127.0.0.1:8000/", client="192.0.2.1") for _ in range(6)]
    if "ratelimit" not in responses[0].headers and "x-ratelimit-limit" not in responses[0].headers:
        raise BlockError(f"an application whose answer has no rate limit headers: {responses[0].headers}")
    return " ".join(str(response.status_code) for response in responses)


def _run_by_python(*words: str) -> str:
    command = [sys.executable, *words]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - it is our page
    if result.returncode:
        raise BlockError(f"exit {result.returncode}: {result.stdout}{result.stderr}")
    return result.stdout


def _forget_django() -> None:
    """Its settings can be configured once in a process; each program of a page has its own."""
    from django.conf import settings
    from django.core.signals import setting_changed
    from django.urls import clear_url_caches
    from django.utils.functional import empty

    setting_changed.send(None, setting="RATELIMIT_MW", value=None, enter=True)
    settings._wrapped = empty
    clear_url_caches()


def _lines(text: str) -> list[str]:
    return text.replace("\\\n", " ").splitlines()


def _compare(expected: str, output: str | None) -> str:
    if output is None:
        raise BlockError("a text block must follow the python or sh block that prints it")
    pattern = ""
    for line in expected.rstrip().splitlines():
        pattern += r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.rstrip().split("…"))) + r"[ \t]*\n"
    if not re.fullmatch(pattern, output.rstrip() + "\n"):
        raise BlockError(f"expected output:\n{expected}\nactual output:\n{output}")
    return "output as shown"


def play_page(path: Path) -> None:
    """Play one page in empty folders, with a line on each block."""
    clock.machine.monotonic_ns = lambda: MOMENT - clock.WALL_AT_ZERO
    clock.machine.time_ns = lambda: MOMENT
    time.time = lambda: MOMENT / 1e9
    for reading in readings(path.read_text()):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            sys.path.insert(0, folder)
            player = Player()
            for block in blocks_of(reading):
                try:
                    print(f"{path.name}:{block.line} {block.language}: {player.play(block)}")
                except BaseException as error:
                    error.add_note(f"in the {block.language} block at {path.name}:{block.line}")
                    raise
            os.chdir(ROOT)


def play_pages(paths: list[Path]) -> int:
    """Play each page in a child process that has all libraries loaded; the number of pages that failed.

    Frameworks such as Django can be set up once in a process, so pages do not share one.
    """
    for name in LIBRARIES:
        importlib.import_module(name)
    failed = 0
    for path in paths:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            _play_and_exit(path)
        failed += os.waitpid(child, 0)[1] != 0
    return failed


def _play_and_exit(path: Path) -> NoReturn:
    code = 1
    try:
        play_page(path)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(play_pages([Path(name).resolve() for name in sys.argv[1:]]))
