"""The page in a real browser, from the real server of each framework."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from browser import Browser
from http_servers import running
from mounted_dashboards import FRAMEWORKS, SERVE, SERVERS, SETTINGS
from servers import PATIENCE, free_port, wait_for

pytestmark = pytest.mark.thorough

RULES = """
traffic_log = "sqlite:///{folder}/traffic.db"

[[rules]]
name = "site"
limits = "3/day"
algorithm = "sliding-window-log"

[[rules]]
name = "trial"
limits = "1/day"
algorithm = "sliding-window-log"
mode = "shadow"
"""


PASSWORD = re.compile(r"(?:this password|until the service stops): (\S+)")


class Served(NamedTuple):
    """A real server with the dashboard."""

    name: str
    url: str
    password: str

    @property
    def page(self) -> str:
        return self.url + (SERVE if self.name == "serve" else FRAMEWORKS[self.name]).path + "/"

    def decide(self, times: int) -> list[bool]:
        """Send requests to the application, and return which of them were allowed."""
        token = {"Authorization": f"Bearer {self.password}"}
        with httpx.Client(base_url=self.url, headers=token, timeout=PATIENCE) as client:
            if self.name == "serve":
                question = {"features": {"ip": "127.0.0.1"}}
                return [client.post("/v1/check", json=question).json()["allowed"] for _ in range(times)]
            return [client.get("/").status_code == 200 for _ in range(times)]

    def data(self, **query: str) -> Any:
        """Return the JSON of the dashboard."""
        credentials = ("", self.password)
        response = httpx.get(f"{self.page}data.json", params=query, auth=credentials, timeout=PATIENCE)
        return response.raise_for_status().json()


@pytest.fixture(params=SERVERS)
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    file, port = tmp_path / "ratelimit.toml", free_port()
    file.write_text(RULES.format(folder=tmp_path))
    command = [word.format(port=port, file=file) for word in SERVERS[request.param]]
    with running(tmp_path / "log", port, *command, **{SETTINGS: str(file)}):
        wait_for(lambda: PASSWORD.search((tmp_path / "log").read_text()), "the password in the log")
        (password,) = PASSWORD.findall((tmp_path / "log").read_text())
        yield Served(request.param, f"http://127.0.0.1:{port}", password)


def row_of(browser: Browser, table: str, name: str) -> dict[str, str]:
    """Return the cells of a row by the heads of their columns. Both are named as the page shows them."""
    script = """
        const [caption, name] = arguments;
        const table = [...document.querySelectorAll("table")].find(each => each.caption?.textContent === caption);
        const row = [...table.tBodies[0].rows].find(each => each.cells[0].textContent === name);
        const heads = [...table.tHead.rows[0].cells].map(each => each.textContent);
        return Object.fromEntries([...row.cells].map((cell, i) => [heads[i], cell.textContent]));
    """
    row: dict[str, str] = browser.run(script, table, name)
    return row


def test_the_page_shows_true_numbers(served: Served, browser: Browser) -> None:
    """It counts each request once, even while it is open. It has no errors and no violations in light and dark."""
    assert served.decide(5) == [True] * 3 + [False] * 2
    browser.open(served.page.replace("//", f"//:{served.password}@", 1))  # the browser keeps the password
    browser.open(served.page)
    site = row_of(browser, "Totals per rule", "site")
    assert (site["Allowed"], site["Rejected"], site["Would be rejected"]) == ("3", "2", "0")
    assert row_of(browser, "Totals per rule", "trial")["Would be rejected"] == "4"
    browser.wait(lambda: browser.all(".plot canvas"), "the curves")
    for scheme in ("light", "dark"):
        browser.set_scheme(scheme)
        assert browser.violations() == []
    served.decide(4)
    browser.wait(lambda: row_of(browser, "Totals per rule", "site")["Rejected"] == "6", "the page to update")
    (totals,) = [row for row in served.data()["traffic"]["totals"] if row["rule"] == "site"]
    assert (totals["allowed"], totals["rejected"]) == (3, 6)
    browser.open("about:blank")  # before the server ends
