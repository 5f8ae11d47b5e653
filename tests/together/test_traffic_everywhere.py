"""The traffic log counts each request for its rules and its endpoint, in an application and in a limiter."""

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from calls import ask
from forked import become_child
from servers import wait_for
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tables import each

from ratelimit_mw import ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.traffic import TrafficLog

NOW = 1_000_000_000.0
RULES = (Rule(name="api", limits="2/minute"), Rule(name="next", limits="1/minute", mode="shadow"))


def logged(*rules: Rule, url: str = "memory://", **settings: Any) -> tuple[Limiter, TrafficLog]:
    limiter = Limiter(rules, clock=ManualClock(NOW), settings=load_settings({"traffic_log": url, **settings}))
    assert limiter.traffic_log is not None
    return limiter, limiter.traffic_log


def test_a_request_without_a_rule_counts_for_its_endpoint() -> None:
    """A deny list, and a path without a route, have events of their own."""
    limiter, log = logged(Rule(name="api", limits="2/minute", match={"path": "/x"}), lists={"deny": {"query:a": ["1"]}})
    routes = [Route("/items/{id}", lambda _: PlainTextResponse("")), Route("/x", lambda _: PlainTextResponse(""))]
    app = RateLimitMiddleware(Starlette(routes=routes), limiter=limiter)
    for path in ("/items/1", "/items/2", "/none", "/none?a=1"):
        ask(app, path)
    assert log.events(NOW, NOW) == {
        "request:allowed": 3,
        "endpoint:/items/{id}:allowed": 2,
        "endpoint:unmatched:allowed": 1,
        "endpoint:unmatched:denied": 1,
        "request:denied": 1,
    }


@each("has_clients", [False, True])
def test_clients_are_recorded_only_where_the_settings_ask_for_them(has_clients: bool) -> None:
    """``traffic_clients = true`` includes the clients of allowed and of rejected requests."""
    limiter, log = logged(Rule(name="api", limits="1/minute"), traffic_clients=has_clients)
    for client in ("192.0.2.7", "192.0.2.7", "192.0.2.7", "192.0.2.8"):
        limiter.hit({"ip": client})
    clients = {outcome: log.top(f"rule:api:{outcome}", NOW, NOW) for outcome in ("allowed", "rejected")}
    if has_clients:
        assert [client[:2] for client in clients["allowed"]] == [("ip=192.0.2.7", 1), ("ip=192.0.2.8", 1)]
        assert [client[:2] for client in clients["rejected"]] == [("ip=192.0.2.7", 2)]
    else:
        assert clients == {"allowed": [], "rejected": []}
    assert log.events(NOW, NOW) == {"rule:api:allowed": 2, "rule:api:rejected": 2}
    limiter.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_closing_a_limiter_writes_the_counts(tmp_path: Path, is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A file that cannot be written is logged, and is no error of the limiter."""
    for folder in (tmp_path, tmp_path / "removed"):
        folder.mkdir(exist_ok=True)
        limiter, _ = logged(*RULES, url=f"sqlite:///{folder}/log.db")
        limiter.hit({"ip": "192.0.2.7"})
        if folder != tmp_path:
            folder.rmdir()
        if is_async:
            asyncio.run(limiter.aclose())
        else:
            limiter.close()
    other = TrafficLog(f"sqlite:///{tmp_path}/log.db", clock=ManualClock(NOW))
    assert other.total("rule:api:allowed", NOW, NOW) == 1
    assert ["the traffic log is not written" in record.getMessage() for record in caplog.records] == [True]
    become_child()  # nothing is left for the end of the process


@pytest.mark.slow
def test_the_thread_of_a_log_ends_with_its_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that is garbage leaves no thread once its counts are written."""
    monkeypatch.setattr("ratelimit_mw.traffic.log.INTERVAL", 0.05)
    others = set(threading.enumerate())
    limiter, log = logged(RULES[0], url=f"sqlite:///{tmp_path}/traffic.db")
    app = RateLimitMiddleware(Starlette(routes=[Route("/x", lambda _: PlainTextResponse(""))]), limiter=limiter)
    ask(app, "/x")
    log.flush()
    ask(app, "/x")
    threads = {each for each in set(threading.enumerate()) - others if each.name == "ratelimit_mw heartbeat"}
    assert threads
    del app, limiter, log

    def have_ended() -> bool:
        gc.collect()  # again and again: the thread of AnyIO that called the view may still hold the application
        return not any(thread.is_alive() for thread in threads)

    wait_for(have_ended, "the end of the thread")
    found = TrafficLog(f"sqlite:///{tmp_path}/traffic.db", clock=ManualClock(NOW)).events(NOW, NOW)
    assert found == {"rule:api:allowed": 2, "endpoint:/x:allowed": 2}


def test_a_log_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    """The message has the place of the setting."""
    with_hours = TrafficLog(f"sqlite:///{tmp_path}/hours.db", "1h:90d", ManualClock(NOW))
    with_hours.record("a")
    with_hours.close()
    for url, problem in {
        "sqlit:///a.db": "Did you mean 'sqlite'",
        f"sqlite:///{tmp_path}/x/a.db": "does not exist",
        f"sqlite:///{tmp_path}/hours.db": 'has the retention "1h:90d"',
    }.items():
        with pytest.raises(ConfigError, match=f"^traffic_log: .*{problem}"):
            logged(url=url)


def test_the_url_may_have_a_password() -> None:
    """Settings that are printed do not show it."""
    assert "hidden" not in repr(load_settings({"traffic_log": "redis://:hidden@cache/0"}))
