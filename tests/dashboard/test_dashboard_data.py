"""The data of the dashboard: the JSON of each part, and parts that cannot be read."""

import json
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import Mock

import pytest
from dashboard_pages import ask, data, page, shown
from flask import Flask
from http_servers import free_port
from tables import each

from ratelimit_mw import ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.flask import RateLimiter, limit
from ratelimit_mw.limiter.observers.events import RequestOutcomes
from ratelimit_mw.limiter.observers.traffic import _events
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.traffic import TrafficLog

NOW = 1_767_268_830.0
BAN = {"after": 10, "within": "10m", "for": "1h"}


def limiter_of(rules: list[Rule] | None = None, store: str = "memory://", **settings: Any) -> Limiter:
    rules = [Rule(name="api", limits="2/minute", ban=BAN)] if rules is None else rules
    return Limiter(rules, store, settings=load_settings(settings), clock=ManualClock(NOW))  # type: ignore[arg-type]


def test_adaptive_limits_have_a_curve_of_this_process() -> None:
    """It has the limit and the requests in flight every 10 s, and a gap without requests. Other rules have none."""
    assert "load" not in data(limiter_of())
    limiter = limiter_of([Rule(name="api", limits="adaptive 5..200 concurrent", target=1, key=[])])
    assert data(limiter)["load"] == {"curves": []}
    clock: Any = limiter.clocks.own
    held = []
    for seconds in (10, 10, 30):
        held.append(limiter.hit({"priority": "critical"}))
        clock.advance(seconds)
    (row,) = data(limiter)["load"]["curves"]
    assert row["lines"] == {"limit": [20, 20, 20, None, None, 20], "in_flight": [1, 2, 3, None, None, 3]}
    assert (row["rule"], row["start"], row["step"]) == ("api", "2026-01-01T12:00:30+00:00", 10)
    assert (row["limit"], row["in_flight"]) == (20, 3)
    html = shown(page(limiter))
    assert "Adaptive limits of this process" in html
    assert "the last change: start" in html


def test_the_curve_of_an_adaptive_limit_has_the_last_hour() -> None:
    """Earlier levels are forgotten."""
    limiter = limiter_of([Rule(name="api", limits="adaptive 5..200 concurrent", target=1, key=[])])
    clock: Any = limiter.clocks.own
    for _ in range(400):
        clock.advance(10)
        limiter.conclude(limiter.hit({}), 200)
    (row,) = data(limiter)["load"]["curves"]
    assert len(limiter.adaptive._history) == 360
    assert (len(row["lines"]["limit"]), len(row["lines"]["in_flight"])) == (360, 360)
    assert row["start"] == "2026-01-01T12:07:20+00:00"


def test_rules_have_the_place_that_they_come_from(tmp_path: Path) -> None:
    """A rule of a file has its line, and one that changes the rule of a decorator does not move the others."""
    file = tmp_path / "ratelimit.toml"
    file.write_text('limits = "9/s"\n[[rules]]\nname = "one"\nlimits = "1/s"\n\n[[rules]]\nlimits = "2/m"\n')
    found = {each["name"]: each["place"] for each in data(Limiter.from_settings(file))["rules"]["rules"]}
    assert found == {"one": f"{file}:2", "rule-2": f"{file}:6", "default": f"{file}:1"}


def test_an_unreachable_store_is_shown_and_the_page_still_works() -> None:
    """Its name has no password. The curves of the log are still there."""
    limiter = limiter_of(store=f"redis://:secret@localhost:{free_port()}/0", traffic_log="memory://")
    assert limiter.traffic_log is not None
    limiter.traffic_log.record("rule:api:rejected", n=1234)
    found, html = data(limiter), page(limiter)
    assert not found["store"]["reachable"]
    assert found["bans"] == found["overrides"] == {"error": "The store is unreachable."}
    assert found["traffic"]["totals"][0]["rejected"] == 1234
    assert "unreachable" in shown(html)
    assert "1,234" in shown(html)
    assert "secret" not in html + json.dumps(found)
    limiter.close()


@each("settings", [{}, {"traffic_clients": True}, {"traffic_log": "memory://"}])
def test_the_page_names_the_settings_that_it_needs(settings: dict[str, Any]) -> None:
    """The rest of the page is there."""
    text = shown(page(limiter_of(**settings), "clients=yes"))
    has_advice = 'add this to your settings: traffic_log = "sqlite:///traffic.db"' in text
    assert has_advice == ("traffic_log" not in settings)
    assert "Clients need traffic_log and traffic_clients = true" in text
    assert "The rules that apply now" in text
    every = limiter_of(traffic_log="memory://", traffic_clients=True)
    assert "The log has no rejection of a client in this time." in shown(page(every, "clients=yes"))


def test_requests_that_a_shadow_rule_would_reject_are_not_rejected() -> None:
    """They were served: their share has a figure and a column of its own."""
    limiter = limiter_of([Rule(name="api", limits="2/minute", mode="shadow")], traffic_log="memory://")
    for _ in range(5):
        assert limiter.hit({"ip": "192.0.2.7"})
    (row,) = data(limiter)["traffic"]["totals"]
    assert (row["rejected"], row["shadow"], row["share"], row["shadow_share"]) == (0, 3, 0.0, 0.6)
    assert "api shadow 5 2 0 0.0% 3 60.0%" in shown(page(limiter))


def test_text_that_is_no_utf_8_is_no_error() -> None:
    """Half a surrogate pair may come with a value of a client."""
    limiter = limiter_of(traffic_clients=True, traffic_log="memory://")
    assert limiter.traffic_log is not None
    limiter.traffic_log.record("rule:a\udcff:rejected", by="b\udcff")
    for name in ("", "data.json"):
        assert ask(limiter, name, "clients=yes").status == 200


def test_a_slow_store_holds_up_no_other_dashboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one limiter waits for its store, the page of another one is shown."""
    slow, other = limiter_of(), limiter_of()
    states: list[str] = []

    def wait() -> None:
        thread = Thread(target=lambda: states.append(data(other)["store"]["name"]), daemon=True)
        thread.start()
        thread.join(30)

    monkeypatch.setattr(slow.store, "ping", wait)
    assert data(slow)["store"]["reachable"]
    assert states == ["memory://"]


def test_a_shared_limit_names_all_its_views() -> None:
    """One limit may be on several views. Each of them, and each place of the limit, is shown."""
    app = Flask(__name__)
    shared = limit("5/minute", name="shared")

    def first() -> str:
        return "a"

    def second() -> str:
        return "b"

    for view in (first, second):
        app.add_url_rule(f"/{view.__name__}", view_func=shared(view))
    extension = RateLimiter(app)
    assert app.test_client().get("/first").status_code == 200
    with app.app_context():
        limiter = extension.limiter
    (rule,) = data(limiter)["rules"]["rules"]
    assert [name.rpartition(".")[2] for name in rule["shown"]["applies to"]] == ["first", "second"]
    assert rule["place"].count("test_dashboard_data.py:") == len(set(rule["place"].split(", ")))


def test_clients_of_the_log_are_hidden_by_default() -> None:
    """The view shows each client once, in JSON, too. Rejections by a ban and by the limit count together."""
    rule = Rule(name="api", limits="2/minute", ban={**BAN, "after": 3})
    limiter = limiter_of([rule], traffic_clients=True, traffic_log="memory://")
    for _ in range(8):
        limiter.hit({"ip": "192.0.2.7"})
    limiter.hit({"ip": "192.0.2.8"})  # has no ban, which is shown
    for query in ("", "clients=yes"):
        bodies = [ask(limiter, name, query).body for name in ("", "data.json")]
        assert [b"192.0.2.8" in body for body in bodies] == [bool(query), bool(query)]
    (client,) = data(limiter, "clients=yes")["clients"]["rejected"]
    assert (client["rule"], client["client"], client["total"]) == ("api", "ip=192.0.2.7", 6)


def test_few_of_many_series_are_drawn_and_the_rest_is_counted() -> None:
    """The page has the largest; each other one can be chosen by its name."""
    limiter = limiter_of(traffic_log="memory://")
    assert limiter.traffic_log is not None
    for i in range(300):
        limiter.traffic_log.record(f"endpoint:/{i:03}:allowed", n=1 + i)
    traffic = data(limiter, "by=endpoint")["traffic"]
    assert [each["endpoint"] for each in traffic["curves"]] == [f"/{i}" for i in range(280, 300)]
    assert (traffic["curves_left_out"], len(traffic["totals"]), traffic["totals_left_out"]) == (280, 50, 250)
    assert len(traffic["names"]) == 200
    assert "280 more are not drawn" in shown(page(limiter, "by=endpoint"))
    (chosen,) = data(limiter, "by=endpoint&name=/007")["traffic"]["curves"]
    assert chosen["lines"]["allowed"][-1] == chosen["total"] == 8


def test_a_page_writes_the_log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are counted while it is read. Each write of a log in Redis leaves a name for a day."""
    limiter = limiter_of(traffic_clients=True, traffic_log="memory://")
    log = limiter.traffic_log
    assert log is not None
    write, writes = log._store.write, list[object]()

    def noting(*arguments: Any) -> Any:
        writes.append(arguments)
        limiter.hit({"ip": "192.0.2.8"})
        return write(*arguments)

    monkeypatch.setattr(log._store, "write", noting)
    for _ in range(8):
        limiter.hit({"ip": "192.0.2.7"})
    assert data(limiter, "clients=yes")["clients"]["rejected"][0]["total"] == 6
    assert len(writes) == 1


def test_a_damaged_log_is_shown_and_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the file and what to do with it. The page waits for it once, even with its clients."""
    file = tmp_path / "traffic.db"
    file.write_bytes(b"no database" * 1_000)
    limiter = limiter_of(traffic_log=f"sqlite:///{file}", traffic_clients=True)
    calls: list[str] = []
    for name in ("as_written", "events", "curves", "top"):
        read = getattr(TrafficLog, name)
        monkeypatch.setattr(TrafficLog, name, lambda *args, read=read, name=name: calls.append(name) or read(*args))
    html = page(limiter, "clients=yes")
    assert (shown(html).count(f"{file} is damaged"), calls) == (2, ["as_written"])
    assert "To start a new log, move the file away" in html


def test_a_long_name_keeps_its_outcome() -> None:
    """Otherwise its requests would be an event of their own. The log shortens both names, and knows the rule."""
    limiter = limiter_of([Rule(name="x" * 200, limits="2/minute")], traffic_log="memory://")
    assert limiter.traffic_log is not None
    (event, _), _ = _events(RequestOutcomes("rejected", (), "memory"), "/" + "x" * 500)
    limiter.traffic_log.record(event, n=7)
    for _ in range(3):
        limiter.hit({})
    (of_endpoint,) = data(limiter, "by=endpoint")["traffic"]["totals"]
    (of_rule,) = data(limiter)["traffic"]["totals"]
    assert (len(of_endpoint["endpoint"]), of_endpoint["rejected"]) == (100, 7)
    assert (of_rule["rule"], of_rule["mode"], of_rule["allowed"], of_rule["rejected"]) == ("x" * 200, "enforce", 2, 1)


def test_bans_and_overrides_have_the_json_of_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pages ask the store once: those of a moment ago are shown again, and new ones after a few seconds.

    A store that cannot list its keys has no bans to show, and the rest of the page is there.
    """
    clock = ManualClock(NOW)
    limiter = Limiter([Rule(name="api", limits="2/minute", ban=BAN)], clock=clock)
    limiter.clients.override("api", {"ip": "192.0.2.9"}, "1000/minute")
    assert data(limiter)["bans"]["bans"] == []
    limiter.clients.ban("api", {"ip": "192.0.2.66"}, "1d")
    assert data(limiter)["bans"]["bans"] == []
    clock.advance(5)
    found = data(limiter)
    (ban,), (override,) = found["bans"]["bans"], found["overrides"]["overrides"]
    assert (ban["client"], ban["rule"], ban["until"]) == ("ip=192.0.2.66", "api", "2026-01-02T12:00:30+00:00")
    assert (override["client"], override["limits"], override["until"]) == ("ip=192.0.2.9", "1000/minute", None)
    monkeypatch.setattr(limiter.store, "list_keys", Mock(side_effect=ConfigError("it cannot list keys")))
    clock.advance(5)
    found = data(limiter)
    assert (found["bans"], len(found["overrides"]["overrides"])) == ({"error": "it cannot list keys"}, 1)
    monkeypatch.setattr("ratelimit_mw.dashboard.data._MAX_PAGES", -1)
    clock.advance(5)
    assert data(limiter)["bans"] == {"bans": [], "has_more": True}


def test_hours_are_in_utc() -> None:
    """A time with another offset is converted."""
    limiter = limiter_of(traffic_log="memory://")
    traffic = data(limiter, "from=2026-01-01T10:00%2B02:00&to=2026-01-01")["traffic"]
    assert (traffic["from"], traffic["to"]) == ("2026-01-01T08:00:00+00:00", "2026-01-01T12:00:30+00:00")
    assert data(limiter, "range=hour")["traffic"]["from"] == "2026-01-01T11:00:30+00:00"
