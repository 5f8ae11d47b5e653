"""Five daily tasks work as written, and take few lines: a view, a router, failed logins, plans, Redis with an own 429.

The lines that limit end with ``# limits``. Without them, each program is the same application without limits.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from calls import aask as ask_asgi
from django_calls import project
from folders import SUPPORT
from lifespan import run_lifespan
from redis_handles import PATIENT, address
from servers import HOST, Server, free_port

from ratelimit_mw.limiter import limiter
from ratelimit_mw.stores import open_store
from ratelimit_mw.testing import ManualClock

MOST_LINES = {"fastapi": 32, "flask": 12, "django": 14}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
Ask = Callable[..., Any]

each = pytest.mark.parametrize("framework", MOST_LINES)


def source_of(framework: str, limited: bool = True) -> str:
    """Return the program with all of its lines, or without those that limit."""
    lines = Path(SUPPORT, f"daily_{framework}.py").read_text().splitlines()
    return "\n".join(line for line in lines if limited or not line.endswith("# limits"))


def start(framework: str, running: ExitStack, limited: bool = True) -> Ask:
    """Start the program, and return a function that sends a request: method, path, form, headers."""
    site = ModuleType(f"daily_{framework}")
    running.callback(sys.modules.pop, site.__name__)
    sys.modules[site.__name__] = site
    exec(compile(source_of(framework, limited), site.__name__, "exec"), vars(site))
    if framework == "fastapi":
        return served_fastapi(site.app, running)
    if framework == "flask":
        running.callback(lambda: limited and site.app.extensions["ratelimit_mw"].limiter.close())
        return lambda method, path, form="", **headers: site.app.test_client().open(
            path, method=method, data=form, headers={**FORM, **headers}
        )
    limits = getattr(site, "RATELIMIT_MW", {})
    served = running.enter_context(project(limits, *site.urlpatterns, middleware=site.MIDDLEWARE))
    return lambda method, path, form="", **headers: served.ask(
        path, method, data=form, content_type=FORM["Content-Type"], headers=headers
    )


def served_fastapi(app: Any, running: ExitStack) -> Ask:
    """Start the application on an event loop, as a server does. It closes its connections when it stops."""
    runner, stopping = running.enter_context(asyncio.Runner()), asyncio.Event()
    started = runner.get_loop().create_task(run_lifespan(app, [], stopping.wait))

    async def stop() -> None:
        stopping.set()
        await started

    running.callback(lambda: runner.run(stop()))
    return lambda method, path, form="", **headers: runner.run(
        ask_asgi(app, path, method, content=form, headers={**FORM, **headers})
    )


@pytest.fixture(params=["running", "stopped"])
def redis(request: pytest.FixtureRequest, redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Redis of the programs, which runs or does not. A machine that is busy makes no store unreachable."""
    monkeypatch.setattr(limiter, "open_store", lambda store, _: open_store(store, PATIENT))
    stopped = f"redis://{HOST}:{free_port()}/0"
    monkeypatch.setenv("REDIS_URL", address(redis_server) if request.param == "running" else stopped)


@each
@pytest.mark.usefixtures("redis")
def test_five_daily_tasks_work(framework: str, ratelimit_clock: ManualClock) -> None:
    """The same requests have the same responses in each framework. Without Redis, the process counts on its own."""
    with ExitStack() as running:
        ask = start(framework, running)
        found = [ask("GET", "/search") for _ in range(3)]
        assert [response.headers.get("X-RateLimit-Remaining") for response in found] == ["1", "0", "0"]
        assert (found[-1].status_code, found[-1].headers["Retry-After"]) == (429, "60")
        assert "slow down" in str(found[-1].content if framework != "flask" else found[-1].text)

        assert [ask("GET", "/api/items").status_code for _ in range(4)] == [200, 200, 200, 429]

        tries = (
            "a@b.example&password=right",
            "A@b.example&password=no",
            "a@b.example&password=no",
            "a@b.example&password=right",
        )
        assert [ask("POST", "/login", f"email={text}").status_code for text in tries] == [200, 401, 401, 429]
        assert ask("POST", "/login", "email=c@b.example&password=no").status_code == 401

        for headers, most in (({}, 1), ({"X-API-Key": "secret"}, 4)):
            sent = [ask("GET", "/report", **headers).status_code for _ in range(most + 1)]
            assert sent == [200] * most + [429]


@each
def test_five_daily_tasks_take_few_lines(framework: str) -> None:
    """Without these lines, nothing is left of the package, and the same application has no limits."""
    plain, whole = source_of(framework, limited=False).splitlines(), source_of(framework).splitlines()
    assert len(whole) - len(plain) <= MOST_LINES[framework]
    assert not [line for line in plain if "ratelimit" in line.lower()]
    with ExitStack() as running:
        ask = start(framework, running, limited=False)
        assert [ask("GET", path).status_code for path in ("/search", "/report", "/api/items") * 5] == [200] * 15
