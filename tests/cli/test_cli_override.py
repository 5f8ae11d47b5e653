"""``ratelimit-mw override``: other limits for single clients, in the store of a running application."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from command_line import Files, run
from flask import Flask
from redis_handles import address
from servers import HOST, Server

from ratelimit_mw import Limiter
from ratelimit_mw.flask import RateLimiter, limit

API = {"name": "api", "key": ["user|ip"], "limits": "100/hour"}
EVERYBODY = {"name": "everybody", "key": [], "limits": "5000/hour"}
SECRET = "correct horse battery staple"
Override = Callable[..., Result]


@pytest.fixture(params=["lmdb", "redis", "memcached"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "lmdb":
        Limiter((), f"lmdb://{tmp_path}/db").start()
        return f"lmdb://{tmp_path}/db"
    server: Server = request.getfixturevalue(f"{request.param}_server")
    if request.param == "redis":
        return address(server, f"?prefix={tmp_path.name}:")
    return f"memcached://{HOST}:{server.port}?prefix={tmp_path.name}:"


@pytest.fixture
def lmdb(tmp_path: Path) -> str:
    Limiter((), f"lmdb://{tmp_path}/db").start()
    return f"lmdb://{tmp_path}/db"


def commands(file: Path) -> Override:
    def override(action: str, *words: str, exit_code: int = 0) -> Result:
        result = run("override", action, file, *words)
        assert result.exit_code == exit_code, result.output
        return result

    return override


def limits(file: Path, **features: Any) -> list[str]:
    """Return the limits of a request in a worker that starts now."""
    limiter = Limiter.from_settings(file)
    limiter.start()
    found = limiter.peek({"method": "GET", "path": "/", **features}, cost=0)
    limiter.close()
    return [str(decision.source.quota) for decision in found.decisions]


def test_an_override_is_set_listed_and_removed(tmp_path: Path, store: str) -> None:
    file = Files(tmp_path).rules(API, EVERYBODY, store=store)
    override = commands(file)
    result = override("set", "api", "user=Acme", "1000/hour; 20000/day", "--for", "7d")
    assert "user=acme  1000/hour" in result.stdout
    assert "20000/day" in result.stdout
    assert result.stderr == "your workers apply the change within 2 s (reload_interval)\n"
    assert limits(file, user="acme") == ["1000/hour", "20000/day", "5000/hour"]
    override("set", "api", "ip=2001:db8::7", "unlimited")
    override("set", "everybody", "7/hour")
    assert limits(file, ip="2001:db8::/64") == ["7/hour"]
    shown = override("list").stdout
    assert "user=acme" in shown
    assert "ip=2001:db8::/64  unlimited" in shown
    assert "all clients" in shown
    (one,) = json.loads(override("list", "api", "user=ACME", "--json").stdout)["overrides"]
    assert (one["client"], one["limits"], one["key"]) == ("user=acme", "1000/hour; 20000/day", "{user=acme}")
    assert one["until"].endswith("+00:00")
    assert len(json.loads(override("list", "everybody", "--json").stdout)["overrides"]) == 1
    assert "override of user=acme removed from rule api" in override("remove", "api", "user=acme").stderr
    assert limits(file, user="acme") == ["100/hour", "7/hour"]
    assert "Check the spelling" in override("remove", "api", "user=acm", exit_code=1).stderr
    removed = json.loads(override("remove", "api", "user=acm", "--json", exit_code=1).stdout)
    assert removed == {"rule": "api", "client": "user=acm", "removed": False}
    assert json.loads(override("clear", "--json").stdout) == {"cleared": True}
    assert override("list").stderr == "there are no overrides\n"


MISTAKES = {
    "user=acme": (2, "expected LIMITS after 'user=acme'"),
    "user=acme 5 per minute": (2, "expected one word for LIMITS. Write '5 per minute' in quotes"),
    "5/minute": (
        1,
        "the key of rule 'api' needs user|ip",
    ),
    "user=acme plan=pro 5/minute": (1, "rule 'api' does not use plan. Its key is: user|ip"),
    "user=acme 5/minut": (1, "limits: cannot parse quota '5/minut'"),
    "ip=x 5/minute": (2, "ip: expected an IP address or a network such as \"10.0.0.0/8\": 'x'"),
    "user=acme 5/minute --for soon": (2, "expected a duration such as"),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_names_what_to_write(tmp_path: Path, lmdb: str, words: str) -> None:
    file = Files(tmp_path).rules(API, store=lmdb)
    exit_code, message = MISTAKES[words]
    result = run("override", "set", file, "api", *words.split(), "--json", prog_name="ratelimit-mw")
    assert result.exit_code == exit_code
    assert message.format(file=file) in result.stderr
    assert json.loads(result.stdout).keys() == {"error"}


def test_an_unknown_rule_may_be_that_of_a_decorator(tmp_path: Path, lmdb: str) -> None:
    file = Files(tmp_path).rules(API, store=lmdb)
    assert "For a rule of a decorator, write --app" in run("override", "set", file, "x", "1/s").stderr
    assert "For a rule of a decorator, write --app" in run("override", "list", file, "x").stderr


def test_the_memory_of_another_process_cannot_be_reached(tmp_path: Path) -> None:
    file = Files(tmp_path).rules(API)
    for words in (("list", file), ("clear", file), ("set", file, "api", "user=acme", "1/s")):
        result = run("override", *words)
        assert result.exit_code == 1
        assert "the store memory:// is in each process of your application" in result.stderr


def test_a_secret_hides_clients_but_finds_them(tmp_path: Path, lmdb: str) -> None:
    file = Files(tmp_path).rules(API, store=lmdb, secret=SECRET)
    override = commands(file)
    override("set", "api", "user=acme", "7/hour")
    listed = override("list")
    assert "acme" not in listed.stdout
    assert "The keys have digests of user and ip" in listed.stderr
    assert len(json.loads(override("list", "api", "user=acme", "--json").stdout)["overrides"]) == 1
    assert override("list", "api", "user=other").stderr.startswith("there is no such override")
    assert limits(file, user="acme") == ["7/hour"]
    override("remove", "api", "user=acme")


def test_overrides_of_other_rules_are_listed_as_such(tmp_path: Path, lmdb: str) -> None:
    """The rule was removed, or it is that of a decorator."""
    file = Files(tmp_path).rules(API, store=lmdb)
    commands(file)("set", "api", "user=acme", "7/hour")
    other = Files(tmp_path).rules({**API, "name": "web"}, store=lmdb)
    assert "api (unknown)  user=acme  7/hour" in commands(other)("list").stdout


def test_a_framework_offers_the_commands(tmp_path: Path, lmdb: str) -> None:
    """``flask ratelimit override`` knows the rules of decorators."""
    app = Flask(__name__)
    RateLimiter(app, settings={"store": lmdb, "reload_interval": 0})

    @app.get("/")
    @limit("5/hour", key=["ip"], name="home")
    def home() -> str:
        return "home"

    runner = app.test_cli_runner()
    result = runner.invoke(args=["ratelimit", "override", "set", "home", "ip=192.0.2.7", "9/hour"])
    assert result.exit_code == 0, result.output
    assert "within" not in result.stderr
    assert "reload_interval = 0: your workers apply the change when they start" in result.stderr
    assert "192.0.2.7" in runner.invoke(args=["ratelimit", "override", "list", "--json"]).stdout
    assert "Change the limits of one client" in runner.invoke(args=["ratelimit", "override", "set", "--help"]).stdout
