"""Run the command line in this process and as a program, and write its settings and logs."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from click.testing import CliRunner, Result
from folders import ROOT

from ratelimit_mw.cli.group import ratelimit_mw
from ratelimit_mw.cli.log_formats import LineParser
from ratelimit_mw.cli.logs import RequestLog
from ratelimit_mw.operations import Answer, Table

EXAMPLE = ROOT / "examples" / "ratelimit.toml"
PROGRAM = Path(sys.executable).parent / "ratelimit-mw"
START = 1_500_000_000
"""The time of the first line of a log, in seconds since 1970: 14 July 2017, 02:40 UTC."""

Write = Callable[..., Path]
"""Writes a file and returns its path."""

SITE = {"name": "site", "limits": "3/minute"}

RULES = """
[[rules]]
name = "login"
match = { path = "/login", methods = ["POST"] }
key = ["email", "ip"]
limits = ["5/minute", "20/hour"]
count_when = { status = [401, 403] }

[[rules]]
name = "api"
match = { path = ["/api/**", "/v2/**"], host = "*.example.com", region = ["DE", "AT"] }
key = ["user|ip"]
limits = ["100/minute burst 20"]
algorithm = { name = "token-bucket", refill = "interval" }
mode = "shadow"
per_key = { alice = "1000/minute" }
per = { plan = { free = "10/minute", pro = "500/minute", a = "1/minute", b = "2/minute" } }

[[rules]]
key = []
match = { methods = ["GET"] }
limits = "1000/second"
"""


def run(*args: object, **options: Any) -> Result:
    """Run the command in this process. A traceback fails the test."""
    return CliRunner().invoke(ratelimit_mw, [str(arg) for arg in args], catch_exceptions=False, **options)


def run_with(app: object, *args: object) -> Result:
    """Run a command on an application."""
    sys.modules["opened"] = ModuleType("opened")
    sys.modules["opened"].app = app  # type: ignore[attr-defined]
    return run(*args, "--app", "opened:app")


def answer_of(name: str, *args: object) -> Answer:
    """Return what a command returns, without printing it. ``name`` may be that of a group, such as "override"."""
    answer: Answer = ratelimit_mw.commands[name].main([str(arg) for arg in args], name, standalone_mode=False)
    return answer


def rows_of(answer: Answer) -> list[dict[str, Any]]:
    """Return the rows of all tables of an answer."""
    return [dict(row) for part in answer.shown if isinstance(part, Table) for row in part.rows]


def titles_of(answer: Answer) -> list[str]:
    """Return the titles of the tables that have rows."""
    return [part.title for part in answer.shown if isinstance(part, Table) and part.rows]


def lines_of(answer: Answer) -> list[str]:
    """Return the lines of an answer outside its tables."""
    parts = (part for part in answer.shown if not isinstance(part, Table))
    return [part if isinstance(part, str) else part.text for part in parts]


def start(*args: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 60, **options}
    return subprocess.run([str(PROGRAM), *map(str, args)], check=False, **options)


def replayed(settings: Path, access_log: Path, *args: object) -> dict[str, Any]:
    """Return the JSON of a replay."""
    report: dict[str, Any] = answer_of("replay", settings, access_log, *args).json
    return report


def request_log(*paths: Path) -> RequestLog:
    """Return the requests of logs."""
    return RequestLog([str(path) for path in paths], LineParser())


def line(
    ip: str = "192.0.2.1",
    at: int = 0,
    path: str = "/",
    method: str = "GET",
    status: int = 200,
    user: str = "-",
    agent: str = "-",
) -> str:
    """Return one line of the combined format, ``at`` seconds after the start."""
    time = datetime.fromtimestamp(START + at, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
    return f'{ip} - {user} [{time}] "{method} {path} HTTP/1.1" {status} 12 "-" "{agent}"\n'


class Files:
    """Write the input files of a command into one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def settings(self, text: str, name: str = "ratelimit.toml") -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def rules(self, *tables: dict[str, Any], **settings: Any) -> Path:
        return self.settings(json.dumps({"rules": tables, **settings}), "ratelimit.json")

    def log(self, lines: Any, name: str = "access.log") -> Path:
        """Write lines, or bytes unchanged."""
        path = self.folder / name
        path.write_bytes(lines if isinstance(lines, bytes) else "".join(lines).encode())
        return path
