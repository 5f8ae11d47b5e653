"""Applications that run twice: with the limits of another package, and with those that ``migrate`` prints.

Each application is one text, with marks for the limiter, for the blueprints and for the decorators of each view.
"""

from __future__ import annotations

import importlib
import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calls import ask, ask_wsgi
from command_line import run

NUMBERS = itertools.count()
FLASK = """
from flask import Blueprint, Flask, request
from flask.views import MethodView
from flask_limiter import ExemptionScope, Limiter
from flask_limiter.util import get_remote_address
app = Flask(__name__)
"""
FLASK_LIMITER = 'limiter = Limiter(get_remote_address, app=app, strategy="moving-window", storage_uri="memory://"%s)'
FASTAPI = """
from functools import partial
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse
from slowapi import Limiter
from slowapi.errors import RateLimitExceeded
from slowapi.middleware import SlowAPIMiddleware
from slowapi.util import get_remote_address
app = FastAPI()
app.add_exception_handler(RateLimitExceeded, lambda request, error: PlainTextResponse("", status_code=429))
"""
SLOWAPI = 'limiter = app.state.limiter = Limiter(get_remote_address, strategy="moving-window"%s)'


def imported(text: str, parts: Mapping[str, list[str]]) -> tuple[str, Any]:
    """Write a module with the lines of each mark, and import it."""
    marked = re.compile(r"^( *)<(\w+)>\n", re.MULTILINE)
    name = f"migrated_{next(NUMBERS)}"
    lines = marked.sub(lambda mark: "".join(f"{mark[1]}{line}\n" for line in parts.get(mark[2], ())), text)
    Path(f"{name}.py").write_text(f"{lines}\n" + "\n".join(parts.get("end", ())))
    importlib.invalidate_caches()
    return name, importlib.import_module(name).app


def migrated(package: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("migrate", package, f"{name}:app", "--json").stdout)
    return found


def parts_of(found: dict[str, Any], functions: str) -> dict[str, list[str]]:
    """Return the lines of each mark that replace those of the other package. ``functions`` are made by hand."""
    code = "\n".join(found["code"]).replace('"ratelimit.toml"', f"json.loads({json.dumps(found['settings'])!r})")
    lines = code.splitlines()
    shared = [line for line in lines if " = limit(" in line]
    blueprints = [line for line in lines if line.startswith(("limit(", "exempt("))]
    views: dict[str, list[str]] = {}
    for view in found["views"]:
        views.setdefault(view["view"].rpartition(".")[2], view["decorators"])
    first = next(line for line in lines if line.startswith("from ratelimit_mw."))
    end = ["import json", *functions.splitlines(), *(line for line in lines if line not in (*shared, *blueprints))]
    return {**views, "limiter": [first, *shared], "blueprints": blueprints, "end": end}


def statuses(app: Any, requests: list[str]) -> dict[str, list[int]]:
    """Return the statuses of six times each request, such as "POST /login", with another header each time."""
    send = ask_wsgi if hasattr(app, "test_client") else ask
    split = [(each, *each.split()) for each in requests]
    return {
        each: [send(app, path, method, headers={"X-Visitor": str(n)}).status_code for n in range(6)]
        for each, method, path in split
    }


def check(
    package: str, text: str, before: Mapping[str, list[str]], *requests: str, functions: str = ""
) -> dict[str, Any]:
    """Compare the application before and after, and return the result of the command."""
    name, old = imported(text, before)
    found = migrated(package, name)
    _, new = imported(text, parts_of(found, functions))
    expected = statuses(old, [*requests])
    assert {status for each in expected.values() for status in each} == {200, 429}
    assert statuses(new, [*requests]) == expected
    return found


def flask(text: str, options: str = "", **before: str) -> tuple[str, str, dict[str, list[str]]]:
    parts = {name: lines.splitlines() for name, lines in before.items()}
    return "flask-limiter", FLASK + text, {**parts, "limiter": [FLASK_LIMITER % options, *parts.get("limiter", [])]}


def fastapi(text: str, options: str = "", **before: str) -> tuple[str, str, dict[str, list[str]]]:
    parts = {name: lines.splitlines() for name, lines in before.items()}
    return "slowapi", FASTAPI + text, {**parts, "limiter": [SLOWAPI % options, *parts.get("limiter", [])]}
