"""The precedence of rules, decorators, overrides and lists is the same in every framework and in the commands."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import sites
from command_line import run as run_command
from misplaced import MISTAKES, check_place, settings_file
from sites import CLIENT, DECORATED, PLAIN, Build, Site, exempt, limited, routed
from tables import each

from ratelimit_mw import ConfigError, Limiter
from ratelimit_mw.testing import limits_off

SETTINGS: dict[str, Any] = {
    "headers": ["ratelimit"],
    "rules": [
        {"name": "site", "limits": "100/minute"},
        {"name": "login", "limits": "90/minute", "match": {"path": "/login", "methods": "POST"}},
        {"name": "items", "limits": "80/minute", "match": {"path": "/api/items/**"}},
        {"overrides": "report", "limits": "70/minute"},
    ],
    "lists": {"allow": {"ip": "203.0.113.7"}, "deny": {"ip": "203.0.113.0/24"}},
}
VIEWS = {
    "/": 200,
    "/login": 200,
    "/report": limited(200, "5/minute", name="report"),
    "/health": exempt(200),
    "/status": exempt(limited(200, "50/minute", name="status"), "site"),
    "/api/items/{number}": limited(200, "60/minute", name="item", match={"methods": "POST"}),
}
REQUESTS = {
    ("GET", "/"): ["site 100"],
    ("GET", "/nowhere"): ["site 100"],
    ("POST", "/login"): ["site 100", "login 90"],
    ("GET", "/report"): ["site 100", "report 70"],
    ("HEAD", "/report"): ["site 100", "report 70"],
    ("GET", "/health"): [],
    ("GET", "/status"): ["status 50"],
    ("GET", "/api/items/7"): ["site 100", "items 80"],
    ("POST", "/api/items/7"): ["site 100", "items 80", "item 60"],
    ("GET", "/api/items/7/parts"): ["site 100", "items 80"],
    ("OPTIONS", "/report"): [],  # Flask and Starlette respond automatically; Django calls the function
}
"""Which limits apply to each request, and with which amounts."""
UNROUTED = dict.fromkeys(("/nowhere", "/api/items/7/parts"), "unmatched")


@pytest.fixture(params=DECORATED)
def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    with DECORATED[request.param](SETTINGS, VIEWS) as found:
        monkeypatch.setattr(sites, "shown", found.app, raising=False)
        yield found


def command(served: Site, *words: str) -> str:
    """Return the output of a command about the application."""
    app = "django.core.wsgi:get_wsgi_application()" if isinstance(served, sites.Project) else "sites:shown"
    return run_command(*words, "--app", app).stdout


def respond(served: Site, method: str, path: str, client: str = CLIENT) -> tuple[int, list[str]]:
    """Return the status and the limits in the response: ``report 70``."""
    response = served.call(method, path, client)
    options = re.findall(r'"(\w+)";q=(\d+)', response.headers.get("ratelimit-policy", ""))
    return response.status_code, [" ".join(found) for found in options]


@each(("method", "path"), REQUESTS)
def test_the_behaviour_matches_the_explain_command(served: Site, method: str, path: str) -> None:
    """File rules come first, then decorators with their overrides, minus exemptions. The command agrees."""
    is_django = isinstance(served, sites.Project)
    expected = REQUESTS["GET" if method == "OPTIONS" and is_django else method, path]
    assert respond(served, method, path)[1] == expected
    explained = command(served, "explain", method, path, "--feature", f"ip={CLIENT}", "--feature", "user=ann", "--json")
    result = json.loads(explained)
    rules = [rule for rule in result["rules"] if rule["applies"]]
    assert [f"{rule['rule']} {rule['limits'][0]['limit'].split('/')[0]}" for rule in rules] == expected
    assert result["features"]["endpoint"] == UNROUTED.get(path, path.replace("7", "{number}"))
    assert ("the view is exempt" in [rule.get("reason") for rule in result["rules"]]) is (
        path in ("/health", "/status")
    )


def test_all_rules_are_listed(served: Site) -> None:
    """The list shows the source and place of each rule, the exempt views and the access lists."""
    lines = [" ".join(line.split()) for line in command(served, "check").splitlines()]
    for start in (
        "site settings all ip 100",
        "login settings POST /login ip 90",
        "items settings /api/items/** ip 80",
        "report @limit and settings /report ip 70",
        "status @limit /status ip 50",
        "item @limit POST /api/items/{number} ",
    ):
        assert [line for line in lines if line.startswith(start)], start
    assert {"exempt: /health from every rule", "exempt: /status from site"} <= set(lines)
    assert "allow list: ip; takes precedence over the deny list and all rules" in lines
    assert "deny list: ip; takes precedence over all rules" in lines


def test_lists_take_precedence_over_all_rules(site: Build) -> None:
    """An allowed client is never limited. A denied client is rejected, even by exempt views. Allow precedes deny."""
    plain = dict.fromkeys(VIEWS, 200)
    settings = {**SETTINGS, "rules": SETTINGS["rules"][:3]} if site.name in PLAIN else SETTINGS
    served = site(settings, plain if site.name in PLAIN else VIEWS)
    assert respond(served, "GET", "/report", "203.0.113.7") == (200, [])
    assert respond(served, "GET", "/report", "203.0.113.9") == (403, [])
    assert respond(served, "GET", "/health", "203.0.113.9") == (403, [])
    with limits_off():
        assert respond(served, "GET", "/report", "203.0.113.9") == (200, [])
        assert respond(served, "GET", "/report") == (200, [])


# -- the places of mistakes ------------------------------------------------------------------------------------


@routed
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("given", ["settings", "limiter"])
def test_a_mistake_has_its_place(site: Build, mistake: str, given: str, tmp_path: Path) -> None:
    """The path of the middleware, and a limiter from the file, have the same message."""
    text, message = MISTAKES[mistake]
    if mistake == "a method" and "django" in site.name:  # a function has all methods
        return
    if mistake == "observers" and given == "limiter":  # it is no mistake of the application
        return
    file = settings_file(tmp_path, text)

    def start() -> None:
        site(Limiter.from_settings(file) if given == "limiter" else file, {"/login": 200}).start()

    with pytest.raises(ConfigError) as caught:
        start()
    check_place(str(caught.value).removeprefix("RATELIMIT_MW: "), file, message)
