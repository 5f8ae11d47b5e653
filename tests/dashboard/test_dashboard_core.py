"""The responses of the dashboard, without a framework."""

import json
import re
from urllib.parse import quote

from dashboard_pages import Elements, ask
from tables import each

from ratelimit_mw import Limiter, Rule, load_settings
from ratelimit_mw.dashboard.core import PageResponse
from ratelimit_mw.testing import ManualClock

NOW = 1_767_268_820.0
HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "a\nb\r\n\x00",
    "\u202eabc\u200f",
    "x" * 10_000,
]


def limiter_with_log(rules: list[Rule] | None = None) -> Limiter:
    settings = load_settings({"traffic_log": "memory://", "traffic_clients": True})
    rules = [Rule(name="api", limits="2/minute")] if rules is None else rules
    return Limiter(rules, settings=settings, clock=ManualClock(NOW))


def text(response: PageResponse) -> str:
    return response.body.decode()


def test_a_closed_dashboard_shows_how_to_open_it_and_no_data() -> None:
    """The page has advice for developers, unless there is a check: a visitor cannot change the application."""
    limiter = limiter_with_log([Rule(name="secret-rule", limits="2/minute")])
    for path in ("", "data.json", "unknown"):
        response = ask(limiter, path, opens=False)
        assert response.status == 401
        assert response.headers["WWW-Authenticate"].startswith("Basic ")
        assert ("allow=" in text(response)) == (path in ("", "unknown"))
        assert "secret-rule" not in text(response)
    response = ask(limiter, opens=False, allow=lambda _: False)
    assert (response.status, "sign in" in text(response), "allow=" in text(response)) == (403, True, False)


@each("path", ["", "data.json", "unknown", "static/dashboard.css"])
def test_every_response_has_the_security_headers(path: str) -> None:
    """No other content runs in the page, no other page frames it, and data is never stored. ``HEAD`` has them, too."""
    limiter = limiter_with_log()
    for is_open in (True, False):
        full, head = ask(limiter, path, opens=is_open), ask(limiter, path, method="HEAD", opens=is_open)
        headers = full.headers
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
        is_file = path.startswith("static/")
        assert headers["Cache-Control"] == ("public, max-age=31536000, immutable" if is_file else "no-store")
        assert headers["Content-Length"] == str(len(full.body))
        assert (head.status, head.headers, head.body) == (full.status, headers, b"")


def test_the_page_links_only_to_its_own_files() -> None:
    """All URLs are relative, so the page works below any prefix; each file exists."""
    limiter = limiter_with_log()
    links = re.findall(r'(?:src|href)="([^"]*)"', text(ask(limiter)))
    files = [link for link in links if link.startswith("static/")]
    assert len(files) == 5
    assert {ask(limiter, link.partition("?")[0]).status for link in files} == {200}
    assert not [link for link in links if link.startswith(("/", "http"))]


@each("value", HOSTILE)
def test_values_of_clients_are_text(value: str) -> None:
    """Names of endpoints, clients and the query add no element, no attribute and no control character."""
    limiter = limiter_with_log([Rule(name="api", key=["user"], limits="1/minute")])
    assert limiter.traffic_log is not None
    limiter.traffic_log.record(f"endpoint:{value}:allowed")
    limiter.traffic_log.record("rule:api:rejected", by=value)
    limiter.clients.override("api", {"user": value[:200]}, "5/minute")
    for query in ("clients=yes", "by=endpoint", f"by=endpoint&name={quote(value)}", f"range={quote(value)}"):
        html = text(ask(limiter, query=query))
        elements = Elements(html)
        scripts = [dict(attrs) for tag, attrs in elements.found if tag == "script"]
        assert all(script["src"] for script in scripts)
        assert not [name for _, attrs in elements.found for name in attrs if name.startswith("on") or name == "style"]
        assert "img" not in {tag for tag, _ in elements.found}
        assert not set(html) & set("\x00\r\u202e\u200f")
        assert "x" * 400 not in elements.text
    assert ask(limiter, query="a&" * 1001).status == 200  # too many fields are none


@each("query", ["range=month", "from=x", "to=2026-01-01", "from=2026-02-01&to=2026-01-01", "by=x"])
def test_an_impossible_view_is_an_error_that_names_the_field(query: str) -> None:
    """It is 400, with the text that was expected. A program, which cannot read a page, gets JSON."""
    found = json.loads(ask(limiter_with_log(), "data.json", query).body)
    assert found["error"].startswith(f"{query[: query.index('=')].replace('to', 'from')}: ")
    response = ask(limiter_with_log(), query=query)
    assert response.status == 400
    assert "Cannot show this view" in text(response)
