"""``ratelimit-mw serve``: the decisions, the JSON API and its access, in this process."""

import json
import socket
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock, patch

import pytest
from command_line import run, start
from decision_service import ADMIN, API, BANNING, CHECK, CLIENT, MAIL, TOKEN, WITH_TOKEN, Asked, token_options
from tables import each, expect_error

from ratelimit_mw import ConfigError, StoreError
from ratelimit_mw.cli.serve.api import ROUTES
from ratelimit_mw.cli.serve.app import DecisionService
from ratelimit_mw.cli.serve.command import create_service


def test_a_check_decides_as_a_limiter() -> None:
    """The verdict has the decisions, and the headers and the status for the client. Null says that nobody signed in."""
    asked = Asked({**API, "key": ["user|ip"]})
    first = asked.check(features={"ip": "192.0.2.7", "user": None})
    assert first == {
        "allowed": True,
        "banned": False,
        "status": 200,
        "retry_after": 0.0,
        "delay": 0.0,
        "headers": {
            "X-RateLimit-Limit": "3",
            "X-RateLimit-Remaining": "2",
            "X-RateLimit-Reset": "60",
            "RateLimit-Policy": '"api";q=3;w=60',
            "RateLimit": '"api";r=2;t=60',
        },
        "decisions": [
            {
                "rule": "api",
                "client": "ip=192.0.2.7",
                "quota": "3/minute",
                "unit": "requests",
                "mode": "enforce",
                "allowed": True,
                "banned": False,
                "limit": 3,
                "remaining": 2,
                "retry_after": 0.0,
                "until": None,
                "reset_after": 60.0,
                "reset_at": "1970-01-12T13:47:40+00:00",
                "key": "1|api|sliding-window-log|1m|{ip=192.0.2.7}",
            }
        ],
    }
    asked.clock.advance(10)
    assert asked.check(features={"ip": "192.0.2.7", "user": None}, cost=2)["allowed"]
    rejected = asked.check(features={"ip": "192.0.2.7", "user": None})
    assert (rejected["allowed"], rejected["status"], rejected["retry_after"]) == (False, 429, 50.0)
    assert rejected["headers"]["Retry-After"] == "50"
    assert asked.check(features={"ip": "192.0.2.7", "user": "ann"})["allowed"]


def test_a_rate_that_follows_its_demand_needs_no_response() -> None:
    """The service decides it, and the admin API shows its amount of the moment."""
    asked = Asked({"name": "api", "limits": "adaptive 1..8/minute", "tune": "demand"})
    (decision,) = asked.check(features={"ip": "192.0.2.7"})["decisions"]
    assert [decision[name] for name in ("limit", "remaining", "reason")] == [4, 3, "start"]


def test_a_check_without_consume_consumes_nothing() -> None:
    """A program can look first, and count after a failed login only."""
    asked = Asked(MAIL)
    question: dict[str, Any] = {"rule": "mail", "features": {"email": "ann@example.com"}}
    assert [asked.check(**question, consume=False)["decisions"][0]["remaining"] for _ in range(3)] == [1, 1, 1]
    assert [asked.check(**question)["allowed"] for _ in range(3)] == [True, True, False]


def test_features_are_counted_in_the_form_of_a_request() -> None:
    """Spellings of an IP address, of an email address and of a path are one. A path need not be Unicode."""
    asked = Asked(API, MAIL, {"name": "items", "limits": "2/minute", "match": {"path": "/a b"}, "key": []})
    content = '{"features": {"ip": "192.0.2.7", "path": "/\\ud800"}}'
    assert asked.ask("POST", "/v1/check", content=content, headers={"content-type": "application/json"}).is_success
    for ip in ("2001:db8::1", "2001:DB8:0:0::2"):
        checked = asked.check(features={"ip": ip, "path": "/a%20b?page=1"})
    assert [each["remaining"] for each in checked["decisions"]] == [1, 0]
    for email in ("Ann@Example.com", " ann@example.com"):
        mail = asked.check(rule="mail", features={"email": email})
    assert mail["decisions"][0]["remaining"] == 0


def test_lists_decide_a_check_first() -> None:
    """The deny list rejects with 403, and the allow list consumes nothing."""
    asked = Asked(API, lists={"deny": {"ip": ["203.0.113.0/24"]}, "allow": {"ip": ["10.0.0.0/8"]}})
    assert asked.check(features={"ip": "203.0.113.9"})["status"] == 403
    assert [asked.check(features={"ip": "10.0.0.9"})["allowed"] for _ in range(5)] == [True] * 5
    assert asked.check(rule="api", features={"ip": "203.0.113.9"})["status"] == 403
    named = Asked(API, lists={"deny": {"user": ["mallory"]}}).check(400, features={"ip": "10.0.0.9"})
    assert named["error"].startswith("features: a list uses the feature 'user'")
    asked = Asked({**API, "match": {"path": "/**"}}, exempt=["/health"])
    assert asked.check(features={"ip": "192.0.2.7", "path": "/health"})["decisions"] == []


SEEN = {"method": "GET", "path": "/"}
WRONG_CHECKS: list[tuple[dict[str, Any], str]] = [
    ({}, "a match uses the feature 'method'"),
    ({"features": SEEN}, "rule 'api' uses the feature 'ip'"),
    ({"features": {**SEEN, "ip": "192.0.2"}}, "features.ip: expected an IP address"),
    ({"features": {"method": "GET", "path": "login"}}, "expected a path that starts with /; got 'login'"),
    ({"features": {"method": 7}}, "features.method: expected text; got 7"),
    ({"features": {"a b": "c"}}, "expected a feature"),
    ({"features": []}, "features: expected a table; got []"),
    ({"rule": "male"}, "unknown rule 'male'. Did you mean 'mail'?"),
    ({"rule": "mail"}, "rule 'mail' uses the feature 'email'"),
    ({"rule": "mail", "features": {"email": ["a"]}}, "email"),
    ({"rule": "mail", "features": {"email": "a"}, "cost": -1}, "expected a cost as a whole number"),
    ({"rule": "mail", "features": {"email": "a"}, "cost": "2"}, "cost: expected a whole number; got '2'"),
    ({"ruel": "mail"}, "ruel: unknown field. Did you mean 'rule'?"),
    ({"rule": "slow", "features": {"ip": "192.0.2.7"}}, "the service sees no response"),
]
NO_OBJECTS = [
    *(b"", b"{", b"[]", b'{"cost": NaN}', b'{"cost": ' + b"9" * 9_000 + b"}", b"null", b'"x"', b"\xff", b"[" * 60_000),
]


def test_a_wrong_check_is_an_error() -> None:
    """The message names the problem, and nothing is counted. A body of more than 64 KiB is a 413."""
    login = {"name": "login", "limits": "1/minute", "match": {"path": "/login", "methods": ["POST"]}}
    slow = {"name": "slow", "limits": "2 concurrent", "match": {"view": ""}}
    asked = Asked(API, MAIL, login, slow)
    for question, message in WRONG_CHECKS:
        assert message in asked.check(400, **question)["error"], question
    for body in NO_OBJECTS:
        response = asked.ask("POST", "/v1/check", content=body, headers={"content-type": "application/json"})
        assert (response.status_code, bool(response.json()["error"])) == (400, True), body[:20]
    assert asked.ask("POST", "/v1/check", json={"rule": "x" * 70_000}).status_code == 413
    assert asked.limiter.clients.inspect().decisions == []


def test_a_blocked_client_is_found_and_unlocked() -> None:
    """Two requests: the first shows the key, the second forgets its count."""
    asked = Asked(API, MAIL)
    for _ in range(3):
        asked.check(features={"ip": "192.0.2.7"})
    (key,) = asked.ask("GET", "/v1/keys?rejected").json()["keys"]
    assert (key["client"], key["rule"], key["allowed"], key["retry_after"]) == ("ip=192.0.2.7", "api", False, 60.0)
    for named in ({"rule": "api"}, {}, {"rejected": "true"}):
        one = asked.ask("GET", "/v1/keys", params={**named, "feature": "ip=192.0.2.7"}).json()
        assert one["keys"] == [key]
    question = {"rule": "api", "features": {"ip": "192.0.2.7"}}
    assert asked.ask("POST", "/v1/reset", json=question).json() == {"reset": True, "keys": [key]}
    assert asked.ask("POST", "/v1/reset", json=question).json() == {"reset": False, "keys": []}
    assert asked.check(features={"ip": "192.0.2.7"})["allowed"]
    assert len(asked.ask("GET", "/v1/keys?rejected=false").json()["keys"]) == 1
    assert asked.ask("POST", "/v1/reset", json=question).json()["reset"]
    assert asked.ask("GET", "/v1/keys").json() == {"keys": [], "has_more": False}


def test_a_decision_shows_a_ban_and_shadow_mode() -> None:
    """A rule in shadow mode rejects nothing, and a ban needs another command than a rejection."""
    asked = Asked(BANNING, {**API, "name": "trial", "limits": "1/minute", "mode": "shadow"})
    asked.ask("POST", "/v1/ban", json=CLIENT)
    for _ in range(2):
        checked = asked.check(features={"ip": "192.0.2.7"})
    assert (checked["banned"], checked["status"]) == (True, 429)
    asked.check(features={"ip": "192.0.2.8"})
    checked = asked.check(features={"ip": "192.0.2.8"})
    shown = [(each["rule"], each["mode"], each["allowed"]) for each in checked["decisions"]]
    assert (checked["allowed"], shown) == (True, [("api", "enforce", True), ("trial", "shadow", False)])
    keys = asked.ask("GET", "/v1/keys?rejected").json()["keys"]
    assert [(key["rule"], key["client"], key["mode"], key["banned"]) for key in keys] == [
        ("api", "ip=192.0.2.7", "enforce", True),
        ("trial", "ip=192.0.2.8", "shadow", False),
    ]


def test_a_key_with_half_of_a_surrogate_pair_is_shown() -> None:
    """It comes from your own code. JSON escapes it."""
    asked = Asked({**API, "key": ["user"]})
    asked.limiter.hit({"user": "a\ud800"})
    (key,) = asked.ask("GET", "/v1/keys").json()["keys"]
    assert key["client"] == "user=a\ud800"
    body = json.dumps({"rule": "api", "features": {"user": "a\ud800"}})
    assert asked.ask("POST", "/v1/reset", content=body, headers={"content-type": "application/json"}).json()["reset"]


WRONG: list[tuple[str, str, Any, str]] = [
    ("GET", "/v1/keys?rul=api", None, "rul: unknown field. Did you mean 'rule'?"),
    ("GET", "/v1/keys?rule=api&rule=mail", None, "rule: was sent 2 times"),
    ("GET", "/v1/keys?rule=api&feature=ip=a&feature=ip=b", None, "ip of rule 'api' cannot have this value"),
    ("GET", "/v1/keys?" + "&".join(["feature=a=b"] * 1001), None, "the query has too many fields"),
    ("GET", "/healthz?x=1", None, "x: unknown field. There is none"),
    ("GET", "/v1/keys?feature=ip", None, "feature: expected NAME=VALUE; got 'ip'"),
    ("GET", "/v1/keys?rule=", None, "unknown rule ''"),
    ("GET", "/v1/keys?rejected=7", None, "rejected: expected true or false; got '7'"),
    ("GET", "/v1/keys?limit=x", None, "limit: expected a whole number from 1 to 100000; got 'x'"),
    ("POST", "/v1/ban", {"rule": "api", "features": []}, "features: expected a table; got []"),
    ("POST", "/v1/ban", {**CLIENT, "for": 7}, "for: expected text; got 7"),
    ("POST", "/v1/override/set", {**CLIENT, "limits": "2 concurrent"}, "limits: the service sees no"),
]


def test_a_wrong_request_of_an_admin_is_an_error() -> None:
    """The message names the problem. The mistakes of each operation are those of ``tests/operations``."""
    asked = Asked(API)
    for method, path, content, message in WRONG:
        response = asked.ask(method, path, **({} if content is None else {"json": content}))
        assert (response.status_code, message in response.json()["error"]) == (400, True), (path, response.text)


def test_the_token_opens_the_api() -> None:
    """The API needs it on this machine, too: behind a TCP proxy, each client looks like a program of this machine."""
    assert {path for _, path, _ in (*ADMIN, CHECK)} == {*ROUTES} - {"/healthz", "/readyz"}
    for method, path, options in (*ADMIN, CHECK):
        for gateway in (None, "nginx"):
            asked = Asked(BANNING, service={"gateway": gateway}, traffic_log="memory://", traffic_clients=True)
            asked.headers = {"x-ratelimit-admin": "yes"}
            for value in (None, "Bearer wrong", "Bearer", TOKEN, f"Basic {TOKEN}", "Bearer é"):
                headers = [] if value is None else [(b"authorization", value.encode("latin-1"))]
                assert asked.ask(method, path, headers=headers, **options).status_code == 401, (path, value)
            asked.peer = "198.51.100.7"
            headers = [(b"authorization", f"bearer {TOKEN}".encode())]
            assert asked.ask(method, path, "http://limits.example", headers=headers, **options).status_code == 200, path


def test_a_web_page_cannot_change_anything() -> None:
    """A browser sends no token to another host without asking first, and the service never agrees."""
    assert Asked(API).ask("POST", "/v1/reset", data={"key": "x"}).status_code == 400
    assert Asked(API).ask("OPTIONS", "/v1/reset").status_code == 405


def test_a_client_gets_other_limits() -> None:
    """The override holds from the next request on, for a gateway too, until it is removed."""
    asked = Asked(API, service={"gateway": "nginx", "token": TOKEN})
    answer = asked.ask("POST", "/v1/override/set", json={**CLIENT, "limits": "9/minute", "for": "1h"}).json()
    override = {"rule": "api", "client": "ip=192.0.2.7", "limits": "9/minute", "until": "1970-01-12T14:46:40+00:00"}
    override["key"] = "{ip=192.0.2.7}"
    assert answer == override
    assert asked.ask("GET", "/v1/overrides").json() == {"overrides": [override]}
    assert asked.check(features={"ip": "192.0.2.7"})["headers"]["X-RateLimit-Limit"] == "9"
    assert asked.nginx().headers["x-ratelimit-limit"] == "9"
    for removed in (True, False):
        answer = asked.ask("POST", "/v1/override/remove", json=CLIENT).json()
        assert answer == {"rule": "api", "client": "ip=192.0.2.7", "removed": removed}
    assert asked.nginx().headers["x-ratelimit-limit"] == "3"


def test_health_and_readiness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are open to all clients, so the reason of a failure is not shown."""
    asked = Asked(API)
    asked.peer, asked.headers = "198.51.100.7", {}
    assert [asked.ask("GET", path, "http://any.example").status_code for path in ("/healthz", "/readyz")] == [200, 200]

    async def aping() -> None:
        raise StoreError("timeout after 50 ms")

    monkeypatch.setattr(asked.limiter.store, "aping", aping)
    assert asked.ask("GET", "/healthz").status_code == 200
    response = asked.ask("GET", "/readyz")
    assert (response.status_code, "timeout" in response.text) == (503, False)
    monkeypatch.setattr(asked.limiter.store, "alist_keys", lambda *_: aping())
    response = asked.ask("GET", "/v1/keys", headers=WITH_TOKEN)
    assert (response.status_code, response.json()) == (503, {"error": "timeout after 50 ms"})


def test_an_unknown_path_names_the_known_ones() -> None:
    """The paths of gateways exist only with a gateway."""
    asked = Asked(API)
    unknown = asked.ask("GET", "/v1/nope").json()["error"]
    assert unknown.startswith("unknown path '/v1/nope'. Expected one of /auth, /healthz, /readyz, /v1/check, ")
    assert "--gateway" in asked.ask("GET", "/auth").json()["error"]
    wrong = asked.ask("GET", "/v1/check")
    assert (wrong.status_code, wrong.json()["error"]) == (405, "/v1/check takes POST; got 'GET'")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a settings file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ratelimit.toml").write_text('[[rules]]\nlimits = "3/minute"\n')
    return tmp_path


NO_TOKEN = "expected a token of at least 16 ASCII characters, without spaces"


@each(
    ("option", "value", "message"),
    [
        ("--workers", "2", "each worker would count on its own"),
        ("--gateway", "nginx", 'Set trusted_proxies = ["127.0.0.1"]'),
        ("--gateway", "apache", "'apache' is not one of"),
        ("--admin-token-file", "short", "Write one with: openssl rand -hex 16 > short"),
        ("--admin-token-file", "lines", NO_TOKEN),
        ("--admin-token-file", "bytes", NO_TOKEN),
    ],
)
def test_a_wrong_option_stops_the_start(folder: Path, option: str, value: str, message: str) -> None:
    """The message says what to write."""
    lines = b"correct horse\nbattery staple\n"
    for name, content in {"short": b"secret\n", "lines": lines, "bytes": b"\xff" * 32}.items():
        (folder / name).write_bytes(content)
    result = run("serve", "ratelimit.toml", option, value)
    assert (result.exit_code in (1, 2), result.stdout) == (True, "")
    assert message in result.stderr


def test_without_a_token_file_the_start_prints_a_token(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All workers have this token, and a token of a file is not printed."""
    monkeypatch.setenv("RATELIMIT_MW_SERVE", "")
    with patch("uvicorn.run"):
        printed = run("serve", "ratelimit.toml").stderr
        assert [admits(word) for word in printed.split()].count(True) == 1
        assert run("serve", "ratelimit.toml", *token_options(folder)).stderr == ""
        assert admits(TOKEN)
        (folder / "admin-token").chmod(0o644)
        assert "chmod 600" in run("serve", "ratelimit.toml", "--admin-token-file", "admin-token").stderr


def admits(word: str) -> bool:
    """Return whether a worker takes a word for its token."""
    asked = Asked(API)
    asked.service, asked.headers = create_service(), {"authorization": f"Bearer {word}"}
    return asked.ask("GET", "/v1/bans").status_code == 200


@pytest.mark.slow
def test_a_port_in_use_is_an_error(folder: Path) -> None:
    """uvicorn prints the reason, and the exit code is that of all commands."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = start("serve", folder / "ratelimit.toml", "--port", port)
    assert result.returncode == 1
    assert "address already in use" in result.stderr
    assert result.stderr.endswith(f"Error: the service did not start on 127.0.0.1:{port}\n")


def text_of(**changes: Any) -> str:
    rule = {"name": "api", "limits": "3/minute", **changes}
    return json.dumps({"rules": [rule], "trusted_proxies": ["127.0.0.1"]})


def test_rules_that_need_an_application_stop_the_start() -> None:
    """The service has neither views nor decorators."""
    expect_error("rule 'api': match.view: ", Asked, {**API, "match": {"view": "home"}})
    expect_error("no decorator has a rule named 'login'", Asked, {"overrides": "login", "limits": "1/s"})


def test_changed_settings_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request looks at the file when that is due, even one that names its rule."""
    settings, asked = tmp_path / "ratelimit.json", Asked()
    settings.write_text(text_of())
    asked.limiter = asked.limiter.from_settings(settings, clock=asked.clock)
    asked.service = DecisionService(asked.limiter, TOKEN, "nginx")
    assert asked.nginx().headers["x-ratelimit-limit"] == "3"
    settings.write_text(text_of(limits="5/minute"))
    watch = Mock(due_at=0.0, alook=AsyncMock(side_effect=asked.limiter.reload))
    monkeypatch.setattr(asked.limiter.reloads, "watch", watch)
    assert asked.check(**CLIENT)["decisions"][0]["remaining"] == 3
    assert asked.nginx().headers["x-ratelimit-limit"] == "5"


@each("wrong", [{"limits": "1 concurrent"}, {"key": "path:id"}, {"match": {"view": "home"}}])
def test_a_start_and_a_reload_find_the_same_mistakes(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """The message begins with the file and the line. A file that the service cannot decide keeps the old rules."""
    settings = tmp_path / "ratelimit.json"
    settings.write_text(text_of())
    asked = Asked()
    limiter = asked.limiter = asked.limiter.from_settings(settings)
    asked.service = DecisionService(limiter, TOKEN, "nginx")
    settings.write_text(text_of(**wrong))
    with pytest.raises(ConfigError) as at_start:
        DecisionService(limiter.from_settings(settings), TOKEN, "nginx")
    with pytest.raises(ConfigError) as at_reload:
        limiter.reload()
    assert str(at_reload.value) == str(at_start.value)
    assert str(at_start.value).startswith(f"{settings}:1: ")
    assert asked.nginx().headers["x-ratelimit-limit"] == "3"
