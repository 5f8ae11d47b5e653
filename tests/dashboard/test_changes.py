"""The changes that an operator makes on the page: the forms, what keeps other websites out, and the results."""

import re
from typing import Any
from urllib.parse import urlencode

import pytest
from dashboard_pages import Elements, ask, page, shown
from tables import each

from ratelimit_mw import Limiter, Rule, StoreError, load_settings
from ratelimit_mw.dashboard.core import PageResponse
from ratelimit_mw.testing import ManualClock

NOW = 1_767_268_830.0
TOKEN = "t" * 32
COOKIE = f"ratelimit_csrf={TOKEN}"
BAN = {"after": 10, "within": "10m", "for": "1h"}
CLIENT = {"rule": "api", "client": "ip=192.0.2.7"}
HOST = "limits.example"


def limiter_of(key: list[str] | None = None) -> Limiter:
    settings = load_settings({"traffic_log": "memory://", "traffic_clients": True})
    rule = Rule(name="api", key=key or ["ip"], limits="2/minute", ban=BAN)
    return Limiter([rule], settings=settings, clock=ManualClock(NOW))


def send(limiter: Limiter, operation: str, query: str = "", **fields: str) -> PageResponse:
    form = {"token": TOKEN, "operation": operation, **CLIENT, **fields}
    return send_form(limiter, form, query, cookie=COOKIE)


def send_form(limiter: Limiter, form: dict[str, str], query: str = "", **headers: str) -> PageResponse:
    return ask(limiter, "change", query, "POST", writes=True, body=urlencode(form).encode(), host=HOST, **headers)


def result(limiter: Limiter, response: PageResponse) -> str:
    """Follow a redirect, and return what the page says."""
    assert response.status == 303, response.body
    text = page(limiter, response.headers["Location"].removeprefix("./?"), writes=True)
    (line,) = re.findall('<p class="result" role="status">(.*?)</p>', text)
    return str(line)


def is_banned(limiter: Limiter) -> bool:
    return limiter.peek({"ip": "192.0.2.7"}).banned


def test_a_client_is_reset() -> None:
    """It is allowed again, its ban is lifted, and a second reset has nothing to do."""
    limiter = limiter_of()
    for _ in range(3):
        limiter.hit({"ip": "192.0.2.7"})
    limiter.clients.ban("api", {"ip": "192.0.2.7"})
    assert result(limiter, send(limiter, "reset")) == "The counts of the client are reset."
    assert limiter.hit({"ip": "192.0.2.7"}).allowed
    assert result(limiter, send(limiter, "reset", client="ip=192.0.2.99")).startswith("The client had no counts.")


def test_a_ban_is_lifted() -> None:
    """The page lists the ban with a button, and then no longer. The redirect leads to the range that was shown."""
    limiter = limiter_of()
    limiter.clients.ban("api", {"ip": "192.0.2.7"}, "1d")
    assert "Lift the ban ip=192.0.2.7" in shown(page(limiter, writes=True)).replace("all clients", "")
    changed = send(limiter, "unban", "range=week&name=api")
    assert changed.headers["Location"] == "./?range=week&name=api&done=unban"
    assert result(limiter, changed) == "The ban of the client is lifted."
    assert not is_banned(limiter)
    assert "No client is banned now." in shown(page(limiter, writes=True))
    assert result(limiter, send(limiter, "unban")).startswith("The client was not banned.")
    limiter.clients.ban(None, {"ip": "192.0.2.7"}, "1d")
    assert is_banned(limiter)
    assert result(limiter, send(limiter, "unban", rule="")) == "The ban of the client is lifted."
    assert not is_banned(limiter)


def test_an_override_is_set_and_removed() -> None:
    """An empty duration has no end."""
    limiter = limiter_of()
    assert result(limiter, send(limiter, "override set", limits="9/minute", **{"for": "1d"})).startswith(
        "The client has"
    )
    (override,) = limiter.clients.overrides()
    assert (override.limits, override.until) == ("9/minute", NOW + 86_400)
    assert send(limiter, "override set", limits="8/minute", **{"for": ""}).status == 303
    (override,) = limiter.clients.overrides()
    assert (override.limits, override.until) == ("8/minute", None)
    assert result(limiter, send(limiter, "override remove")).startswith("The client has the limits of its rule")
    assert limiter.clients.overrides() == []
    assert result(limiter, send(limiter, "override remove")).startswith("The client had no override.")


def test_a_client_may_have_several_features_with_spaces() -> None:
    """The text of a client on the page is what the form takes."""
    limiter = limiter_of(["user", "ip"])
    features = {"user": "ann lee", "ip": "192.0.2.7"}
    limiter.clients.ban("api", features)
    inputs = [dict(attrs) for tag, attrs in Elements(page(limiter, writes=True)).found if tag == "input"]
    (row,) = [attrs["value"] for attrs in inputs if attrs.get("data-field") == "client" and attrs["value"]]
    assert send(limiter, "unban", client=str(row)).headers["Location"] == "./?done=unban"
    assert not limiter.peek(features).banned


def test_the_name_of_a_client_never_names_another_one() -> None:
    """Clients choose their names. What may be two clients is an error."""
    limiter = limiter_of(["user|ip"])
    for name in ("ann", "ann ip=192.0.2.7"):
        limiter.clients.ban("api", {"user": name})
    response = send(limiter, "unban", client="user=ann ip=192.0.2.7")
    assert "does not count this client by ip. Leave it out" in shown(response.body.decode())
    assert limiter.peek({"user": "ann"}).banned


@each(
    ("operation", "fields", "problem"),
    [
        ("ban", {}, "operation: expected one of reset, unban"),
        ("", {}, "operation: expected one of reset, unban"),
        ("override clear", {}, "operation: expected one of reset, unban"),
        ("override set", {}, "limits: is missing"),
        ("override set", {"limits": "5/minut"}, "5/minut"),
        ("override set", {"limits": "5/minute", "for": "soon"}, "for: "),
        ("reset", {"client": "192.0.2.7"}, "expected NAME=VALUE"),
        ("reset", {"client": "user=ann"}, "ip"),
        ("unban", {"rule": "other"}, "other"),
    ],
)
def test_a_wrong_field_is_an_error_that_names_it(operation: str, fields: dict[str, str], problem: str) -> None:
    """Nothing is changed. The page has a link back."""
    limiter = limiter_of()
    response = send(limiter, operation, **fields)
    text = shown(response.body.decode())
    assert (response.status, problem in text, "Back to the dashboard" in text) == (400, True, True), text
    assert limiter.clients.overrides() == []


def test_only_the_page_itself_changes_something() -> None:
    """A form needs the token of the cookie, and comes from the origin of the page where the browser names one.

    A body that is no form, or is too long, is an error.
    """
    form = {**CLIENT, "operation": "unban", "token": TOKEN}
    cases: list[tuple[dict[str, str], dict[str, str], int]] = [
        (form, {"cookie": COOKIE}, 303),
        (form, {"cookie": COOKIE, "origin": f"https://{HOST}"}, 303),
        (form, {"cookie": COOKIE, "sec_fetch_site": "same-origin", "origin": "https://behind.example"}, 303),
        (form, {}, 403),
        (form, {"cookie": f"ratelimit_csrf={'u' * 32}"}, 403),
        ({**form, "token": ""}, {"cookie": "ratelimit_csrf="}, 403),
        ({**form, "token": "u" * 32}, {"cookie": COOKIE}, 403),
        ({**CLIENT, "operation": "unban"}, {"cookie": COOKIE}, 403),
        (form, {"cookie": COOKIE, "origin": "https://evil.example"}, 403),
        (form, {"cookie": COOKIE, "origin": f"https://{HOST}.evil.example"}, 403),
        (form, {"cookie": COOKIE, "origin": "null"}, 403),
        (form, {"cookie": COOKIE, "sec_fetch_site": "cross-site"}, 403),
        (form, {"cookie": COOKIE, "sec_fetch_site": "same-site"}, 403),
    ]
    for body in (b"", b"a=" + b"x" * 20_000, b"&".join(b"a=b" for _ in range(2_000)), b"\xff"):
        response = ask(limiter_of(), "change", "", "POST", writes=True, body=body, cookie=COOKIE)
        assert response.status in (400, 403), body[:20]
    for sent, headers, status in cases:
        limiter = limiter_of()
        limiter.clients.ban("api", {"ip": "192.0.2.7"})
        response = send_form(limiter, sent, **headers)
        assert (response.status, is_banned(limiter)) == (status, status != 303), (sent, headers, response.body)


def test_the_token_is_in_a_cookie_that_scripts_and_other_sites_do_not_have() -> None:
    """A browser keeps its token, so that several open pages have the same one."""
    limiter = limiter_of()
    cookie = ask(limiter, writes=True).headers["Set-Cookie"]
    assert re.fullmatch(r"ratelimit_csrf=[\w-]{32}; HttpOnly; SameSite=Strict", cookie)
    again = ask(limiter, writes=True, cookie=cookie.partition(";")[0])
    assert "Set-Cookie" not in again.headers
    assert f'value="{cookie[15:47]}"'.encode() in again.body
    assert "Set-Cookie" in ask(limiter, writes=True, cookie="ratelimit_csrf=short").headers


@each(("writes", "method", "allowed"), [(False, "POST", "GET, HEAD"), (True, "GET", "POST"), (True, "DELETE", "POST")])
def test_a_mount_is_read_only_by_default(writes: bool, method: str, allowed: str) -> None:
    """Without ``writes``, there are no forms and no cookie."""
    response = ask(limiter_of(), "change", "", method, writes=writes, body=b"operation=unban", cookie=COOKIE)
    assert (response.status, response.headers["Allow"]) == (405, allowed)
    text = page(limiter_of(), "done=unban", writes=writes)
    assert ("<form method=" in text, "Set-Cookie" in ask(limiter_of(), writes=writes).headers) == (writes, writes)


def test_an_unreachable_store_is_a_problem_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is 503, and the page says that the change failed."""

    def fail(*_: Any) -> Any:
        raise StoreError("no reply")

    monkeypatch.setattr("ratelimit_mw.dashboard.changes.run", fail)
    response = send(limiter_of(), "unban")
    assert (response.status, "The change failed no reply" in shown(response.body.decode())) == (503, True)
