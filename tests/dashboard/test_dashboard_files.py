"""The CSV files of the dashboard."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from ratelimit_mw import Limiter, load_settings
from ratelimit_mw.dashboard.core import respond
from ratelimit_mw.dashboard.response import PageResponse
from ratelimit_mw.limiter.observers.traffic import _events_at
from ratelimit_mw.traffic import TrafficLog

API = {"rules": [{"name": "api", "key": ["user"], "limits": "2/minute"}]}
FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\u00a0=1", "\uff1d1", "\uff0b1"]


def limiter_of(**settings: Any) -> Limiter:
    return Limiter.from_settings(load_settings({**API, **settings}))


def get(limiter: Limiter, path: str, query: str = "") -> PageResponse:
    return respond(limiter, "GET", path, query, True)


def rows_of(response: PageResponse) -> list[list[str]]:
    assert response.status == 200
    return list(csv.reader(StringIO(response.body.decode(), newline="")))


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_is_a_formula(text: str) -> None:
    """A spreadsheet shows the text of a client, and runs nothing, even after spaces or with wide characters."""
    limiter = limiter_of(traffic_log="memory://")
    assert limiter.traffic_log is not None
    limiter.traffic_log.record(text, n=7)
    assert rows_of(get(limiter, "totals.csv", "by=event"))[1][:2] == [f"'{text}", "7"]


def test_other_cells_are_unchanged() -> None:
    """Separators and quotes are kept by the form of RFC 4180."""
    limiter = limiter_of(traffic_log="memory://")
    assert limiter.traffic_log is not None
    texts = ['a, "b"', "c\nd", "e=f", "'g"]
    for text in texts:
        limiter.traffic_log.record(text)
    response = get(limiter, "totals.csv", "by=event")
    assert sorted(row[0] for row in rows_of(response)[1:]) == sorted(texts)
    assert response.body.endswith(b"\r\n")


def test_a_log_that_cannot_be_read_is_no_empty_file(tmp_path: Path) -> None:
    """The page shows the reason and its other parts. A program that reads the files gets 503."""
    file = tmp_path / "traffic.db"
    file.write_bytes(b"no database" * 1_000)
    limiter = limiter_of(traffic_log=f"sqlite:///{file}")
    page = get(limiter, "")
    assert (page.status, f"{file} is damaged" in page.body.decode()) == (200, True)
    for name in ("curves.csv", "totals.csv"):
        response = get(limiter, name)
        assert (response.status, response.headers["Content-Type"]) == (503, "text/plain; charset=utf-8")
        assert f"{file} is damaged" in response.body.decode()
    assert rows_of(get(limiter, "rules.csv"))[1][0] == "api"


def test_a_file_of_a_part_that_is_off_is_not_found() -> None:
    """The response says which setting to add."""
    for name, setting in (("totals.csv", "traffic_log ="), ("clients.csv", "record ="), ("bans.csv", "ban")):
        response = get(limiter_of(), name)
        assert (response.status, setting in response.body.decode()) == (404, True)


def test_a_log_that_cannot_be_read_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a log does not respond, the page waits for it once, even with its clients."""
    file = tmp_path / "traffic.db"
    file.write_bytes(b"no database" * 1_000)
    limiter = limiter_of(traffic_log=f"sqlite:///{file}", record="clients")
    calls: list[str] = []
    for name in ("events", "curves", "top"):
        read = getattr(TrafficLog, name)
        monkeypatch.setattr(TrafficLog, name, lambda *args, read=read, name=name: calls.append(name) or read(*args))
    page = get(limiter, "", "clients=yes").body.decode()
    assert (page.count(f"{file} is damaged"), calls) == (2, ["events"])


@pytest.mark.parametrize("kind", ["rule", "endpoint", "event"])
@pytest.mark.parametrize("name", ["curves.csv", "totals.csv", "clients.csv", "bans.csv", "overrides.csv"])
def test_a_file_without_rows_has_its_columns(name: str, kind: str) -> None:
    """They are those of a file with rows, so that one program reads both."""
    ban = {"after": 1, "within": "10m", "for": "1h"}
    settings = {"rules": [{**API["rules"][0], "ban": ban}], "traffic_log": "memory://", "record": "clients"}
    empty, full = limiter_of(**settings), limiter_of(**settings)
    assert full.traffic_log is not None
    full.set_override("api", {"user": "ann"}, "3/minute")
    for event in ("endpoint:GET /:rejected", "order"):
        full.traffic_log.record(event)
    for _ in range(4):
        full.hit({"user": "bob"})
    without, found = (rows_of(get(each, name, f"by={kind}&clients=yes")) for each in (empty, full))
    assert len(without) == 1
    assert without[0] == found[0]


def test_control_characters_are_escaped() -> None:
    """A client chooses a path, and a terminal would obey it."""
    limiter = limiter_of(traffic_log="memory://")
    assert limiter.traffic_log is not None
    limiter.traffic_log.record("/\x1b]0;title\x07\x9b31m")
    assert rows_of(get(limiter, "totals.csv", "by=event"))[1][0] == r"/\x1b]0;title\x07\x9b31m"


def test_a_long_endpoint_keeps_its_outcome() -> None:
    """Otherwise its requests would be an event of their own."""
    limiter = limiter_of(traffic_log="memory://")
    assert limiter.traffic_log is not None
    (event,) = _events_at("/" + "x" * 500, "rejected")
    limiter.traffic_log.record(event, n=7)
    heading, row = rows_of(get(limiter, "totals.csv", "by=endpoint"))
    assert (len(row[0]), dict(zip(heading, row, strict=True))["rejected"]) == (100, "7")


def test_a_long_rule_keeps_its_outcome() -> None:
    """A rule with the longest name is a rule on the page, although the log shortens the name."""
    rules = [{"name": "x" * 200, "limits": "2/minute"}]
    limiter = limiter_of(traffic_log="memory://", rules=rules)
    for _ in range(3):
        limiter.hit({})
    heading, row = rows_of(get(limiter, "totals.csv"))
    found = dict(zip(heading, row, strict=True))
    assert (found["rule"], found["mode"]) == ("x" * 200, "enforce")
    assert (found["allowed"], found["rejected"]) == ("2", "1")
