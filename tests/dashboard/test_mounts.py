"""The dashboard in each framework: who may see it, and which requests it takes."""

from typing import Any

import pytest
from decision_service import TOKEN
from mounted_dashboards import FRAMEWORKS, SERVE, ais_staff, basic, is_staff, mounted, service
from tables import case, each

from ratelimit_mw import Limiter
from ratelimit_mw.dashboard.core import _log_password
from ratelimit_mw.http.token import start_token

RULES = {
    "traffic_log": "memory://",
    "rules": [{"name": "site", "limits": "3/day", "algorithm": "sliding-window-log"}],
}
EVERY = {**FRAMEWORKS, "serve": SERVE}
STAFF = {"X-Staff": "yes"}
FILES = ("/", "/data.json")
WRONG = [{}, basic("wrong"), basic(""), {"Authorization": "Basic %%%"}, {"Authorization": f"Basic {start_token()}"}]
ELSEWHERE = {"peer": "192.0.2.7", "base": "http://limits.example"}
UNKNOWN = (
    *("/none", "/static/none.css", "/static/", "/static/..%2Fcore.py", "/static/%2e%2e/core.py"),
    *("/static//etc/passwd", "/static/..%5ccore.py", "/static/dashboard.css%00", "/static/dashboard.css/"),
)


@each("name", EVERY)
def test_the_printed_password_opens_the_dashboard(name: str) -> None:
    """A browser and a program get the page and its data, from each machine. Without its last slash, it redirects."""
    with mounted(EVERY[name], RULES) as site:
        page = site.ask()
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert site.ask("/data.json").json()["rules"]["rules"][0]["name"] == "site"
        headers = {"Authorization": f"Bearer {start_token()}"}
        assert site.ask(headers=headers, **ELSEWHERE).status_code == 200
        # An open page requests its data again and again, so it would show mostly itself.
        assert site.ask("/data.json").json()["traffic"]["totals"] == []
        page = site.ask("", follow_redirects=True)
        assert (page.status_code, page.url.path) == (200, f"{site.path}/")


@each("name", EVERY)
def test_without_the_password_the_dashboard_is_closed(name: str) -> None:
    """A program of this machine gets a 401, too: behind a TCP proxy, each client looks like one."""
    form = {"token": "x" * 32, "operation": "override set", "rule": "site", "client": "ip=192.0.2.7", "limits": "9/day"}
    with mounted(EVERY[name], RULES, writes=True) as site:
        for headers in WRONG:
            for path in FILES:
                response = site.ask(path, headers=headers)
                with case(path, headers):
                    assert (response.status_code, "site" in response.text) == (401, False)
                    assert response.headers["www-authenticate"].startswith("Basic ")
            sent = {**headers, "Cookie": f"ratelimit_csrf={'x' * 32}"}
            with case(headers):
                assert site.ask("/change", "POST", data=form, headers=sent).status_code == 401
        assert site.limiter.clients.overrides() == []


@each("name", FRAMEWORKS)
@each("allow", [is_staff, ais_staff])
def test_your_function_opens_the_dashboard(name: str, allow: Any) -> None:
    """It decides alone: staff come from other machines, and this machine has no other right."""
    with mounted(FRAMEWORKS[name], RULES, allow) as site:
        for path in FILES:
            allowed = site.ask(path, headers=STAFF, **ELSEWHERE)
            assert (allowed.status_code, site.ask(path).status_code) == (200, 403)


@each("name", ["flask", "django"])
def test_a_dashboard_may_show_another_limiter(name: str) -> None:
    framework, other = FRAMEWORKS[name], Limiter([])
    build = lambda limiter, *given: framework.build(other, *given, limiter)  # type: ignore[call-arg] # noqa: E731
    with mounted(framework._replace(build=build), RULES) as site:
        assert site.ask("/data.json").json()["rules"]["rules"][0]["name"] == "site"


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_password_is_in_the_log_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Where there is an ``allow``, there is no password."""
    _log_password.cache_clear()
    with mounted(FRAMEWORKS[name], RULES, is_staff):
        assert start_token() not in caplog.text
    for _ in range(2):
        with mounted(FRAMEWORKS[name], RULES):
            assert caplog.text.count(start_token()) == 1


@each("name", EVERY)
def test_the_dashboard_is_read_only(name: str) -> None:
    """``HEAD`` has the headers of ``GET``. All other methods are not allowed, and unknown paths are not found."""
    with mounted(EVERY[name], RULES) as site:
        for path in FILES:
            head, got = site.ask(path, "HEAD"), site.ask(path)
            assert (head.status_code, head.content) == (200, b"")
            assert {"content-security-policy", "content-type", "cache-control"} <= head.headers.keys()
            assert head.headers["content-type"] == got.headers["content-type"]
        for method in ("POST", "DELETE"):
            response = site.ask("/", method)
            assert (response.status_code, "GET" in response.headers["allow"]) == (405, True)
        # No path leads to another file. A framework may redirect to its own form of the path first.
        for path in UNKNOWN:
            response = site.ask(path, follow_redirects=True)
            assert (response.status_code, "import" in response.text) == (404, False), path


def test_the_redirect_is_relative() -> None:
    """A prefix that a proxy removes stays in the URL. Starlette, Flask and Django redirect on their own."""
    with mounted(SERVE, RULES) as site:
        response = site.ask("", params={"range": "week"})
        assert (response.status_code, response.headers["location"]) == (307, "./dashboard/?range=week")


@each("name", FRAMEWORKS)
def test_limits_do_not_lock_staff_out(name: str) -> None:
    """The page, which updates while it is open, consumes nothing. Clients without the right consume nothing either."""
    with mounted(FRAMEWORKS[name], RULES, is_staff) as site:
        statuses = [site.ask(path, headers=STAFF).status_code for path in FILES * 3]
        assert statuses == [200] * len(statuses)
        assert [site.ask(path).status_code for path in FILES * 3] == [403] * len(statuses)
        assert [site.send("/").status_code for _ in range(4)] == [200, 200, 200, 429]
        assert site.ask(headers=STAFF).status_code == 200


@each("name", FRAMEWORKS)
def test_a_rule_may_name_the_dashboard(name: str) -> None:
    framework = FRAMEWORKS[name]
    rule = {**RULES["rules"][0], "match": {"path": f"{framework.path}/**"}}
    with mounted(framework, {"rules": [rule]}) as site:
        assert [site.ask().status_code for _ in range(4)] == [200, 200, 200, 429]


def test_the_service_asks_browsers_for_its_token() -> None:
    """It is the password of any user name, also behind a gateway. Only programs use the admin API."""
    with mounted(service(TOKEN, "nginx"), {**RULES, "trusted_proxies": ["127.0.0.1"]}) as site:
        assert [site.ask(path, headers=basic("wrong")).status_code for path in FILES] == [401] * 2
        for headers in (basic(TOKEN), basic(TOKEN, "admin"), {"Authorization": f"Bearer {TOKEN}"}):
            assert site.ask(headers=headers, **ELSEWHERE).status_code == 200
        assert site.send("/v1/keys", headers=basic(TOKEN)).status_code == 401


@each("name", EVERY)
def test_an_operator_changes_a_client(name: str) -> None:
    """The page has a form with the token of its cookie. It works in every framework, and leads back to the page."""
    week = {"range": "week"}
    with mounted(EVERY[name], RULES, writes=True) as site:
        page = site.ask("/", params=week)
        cookie = page.headers["set-cookie"].partition(";")[0]
        token = cookie.partition("=")[2]
        assert f'name="token" value="{token}"' in page.text
        form = {"token": token, "operation": "override set", "rule": "site", "client": "ip=192.0.2.7"}
        headers = {**basic(start_token()), "Cookie": cookie}
        changed = site.ask("/change", "POST", params=week, data={**form, "limits": "9/day"}, headers=headers)
        assert (changed.status_code, changed.headers["location"]) == (303, "./?range=week&done=override+set")
        assert [(each.rule, each.limits) for each in site.limiter.clients.overrides()] == [("site", "9/day")]
