"""``ratelimit-mw ban``, ``unban`` and ``bans``, on the stores of a running application."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from command_line import Files, line, run
from flask import Flask
from memcached_handles import address as memcached_address
from redis_handles import address
from servers import Server

from ratelimit_mw import Limiter
from ratelimit_mw.flask import RateLimiter, limit
from ratelimit_mw.stores import LmdbStore

BAN = {"after": 2, "within": "10m", "for": "1h", "growth": 2}
LOGIN = {"name": "login", "key": ["ip"], "limits": "1/hour", "ban": BAN}
MAIL = {"name": "mail", "key": ["email"], "limits": "1/hour", "ban": BAN}
SITE = {"name": "site", "key": ["ip"], "limits": "100/hour"}
WHO = {"ip": "192.0.2.7"}


class Site:
    """A settings file with a store, and an application that counts requests in it."""

    def __init__(self, folder: Path, store: str) -> None:
        patient = {"store_timeout": "10s", "rejection_cache": 0}
        self.file = Files(folder).rules(LOGIN, MAIL, SITE, store=store, **patient)
        self.limiter = Limiter.from_settings(self.file)

    def command(self, *words: str, exit_code: int = 0) -> Result:
        result = run(words[0], self.file, *words[1:])
        assert result.exit_code == exit_code, result.output
        return result

    def as_json(self, *words: str) -> Any:
        return json.loads(self.command(*words, "--json").stdout)


@pytest.fixture(params=["lmdb", "redis"])
def site(request: pytest.FixtureRequest, tmp_path: Path, redis_server: Server) -> Iterator[Site]:
    stores = {"lmdb": f"lmdb://{tmp_path}/db", "redis": address(redis_server, f"?prefix={tmp_path.name}:")}
    found = Site(tmp_path, stores[request.param])
    yield found
    found.limiter.close()


def test_a_ban_by_hand_rejects_and_is_lifted(site: Site) -> None:
    """The application follows at once. The counts of the client stay."""
    assert site.limiter.hit(WHO).allowed
    assert "ip=192.0.2.9 is banned from rule login until 20" in site.command("ban", "login", "ip=192.0.2.9").stdout
    other = {"ip": "192.0.2.9"}
    verdict = site.limiter.hit(other)
    assert verdict.banned
    assert 3000 < (verdict.retry_after or 0) <= 3600
    assert "ip=192.0.2.9 is no longer banned" in site.command("unban", "login", "ip=192.0.2.9").stdout
    assert site.limiter.hit(other).allowed
    assert not site.limiter.hit(other).allowed


def test_a_client_that_is_not_banned_is_an_error(site: Site) -> None:
    """So that a typo does not look like success."""
    site.limiter.hit(WHO)
    result = site.command("unban", "login", "ip=192.0.2.70", exit_code=1)
    assert "ip=192.0.2.70 was not banned from rule login. Check the spelling" in result.stderr
    assert json.loads(site.command("unban", "login", "ip=192.0.2.70", "--json", exit_code=1).stdout) == {
        "rule": "login",
        "client": "ip=192.0.2.70",
        "was_banned": False,
    }


def test_bans_are_listed_with_their_ends(site: Site) -> None:
    """Those by rejections and those by hand, of all rules or of one. Other clients are not."""
    site.limiter.hit({"ip": "192.0.2.8"})
    assert "no client is banned now" in site.command("bans").stderr
    for _ in range(4):
        site.limiter.hit(WHO)
    site.command("ban", "mail", "email=Ann@Example.com", "--for", "7d")
    every = site.as_json("bans")
    assert [(each["rule"], each["client"], each["mode"]) for each in every["bans"]] == [
        ("login", "ip=192.0.2.7", "enforce"),
        ("mail", "email=ann@example.com", "enforce"),
    ]
    assert 600_000 < every["bans"][1]["retry_after"] <= 604_800
    assert not every["has_more"]
    assert [each["rule"] for each in site.as_json("bans", "--rule", "login")["bans"]] == ["login"]
    text = site.command("bans", "--limit", "1")
    assert ("ip=192.0.2.7" in text.stdout) != ("ann@example.com" in text.stdout)
    assert "there are more bans than --limit 1" in text.stderr


def test_inspect_and_reset_know_bans(site: Site) -> None:
    for _ in range(4):
        site.limiter.hit(WHO)
    assert "banned until" in site.command("inspect", "--feature", "ip=192.0.2.7").stdout
    assert [key["banned"] for key in site.as_json("inspect", "--rejected")["keys"]] == [True]
    assert " of " not in site.command("reset", "login", "ip=192.0.2.7").stdout  # a ban hides the counts
    assert site.limiter.hit(WHO).allowed


@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        (
            ("ban", "site", "ip=192.0.2.7"),
            1,
            "rule 'site' has no ban option, so a ban would have no effect. Add ban = {",
        ),
        (("ban", "login", "--for", "soon", "ip=192.0.2.7"), 2, "Invalid value for '--for': expected a duration such"),
        (("ban", "login", "--for", "0s", "ip=192.0.2.7"), 2, "Invalid value for '--for': expected more than 0"),
        (("ban", "login"), 1, "the key of rule 'login' needs ip"),
        (("unban", "logon", "ip=192.0.2.7"), 1, "unknown rule 'logon'. Did you mean 'login'"),
        (("bans", "--rule", "logon"), 1, "unknown rule 'logon'. Did you mean 'login'"),
    ],
)
def test_a_mistake_is_named(site: Site, words: tuple[str, ...], exit_code: int, message: str) -> None:
    site.limiter.hit(WHO)
    assert message in site.command(*words, exit_code=exit_code).stderr


def test_memcached_bans_and_lists_none(memcached_server: Server, tmp_path: Path) -> None:
    site = Site(tmp_path, memcached_address(memcached_server))
    site.command("ban", "login", "ip=192.0.2.99")
    assert "banned until" in site.command("inspect", "--rule", "login", "--feature", "ip=192.0.2.99").stdout
    assert "cannot list its keys" in site.command("bans", exit_code=1).stderr
    site.command("unban", "login", "ip=192.0.2.99")


def test_decorators_and_frameworks(tmp_path: Path) -> None:
    """``flask ratelimit`` has the same commands for the rules of decorators."""
    app = Flask(__name__)
    RateLimiter(app, settings={"store": f"lmdb://{tmp_path}/db", "store_timeout": "10s"})

    @app.get("/")
    @limit("9/minute", name="home", ban=BAN)
    def home() -> str:
        return "hello"

    client, runner = app.test_client(), app.test_cli_runner()
    assert client.get("/").status_code == 200
    result = runner.invoke(args=["ratelimit", "ban", "home", "ip=127.0.0.1"])
    assert result.exit_code == 0, result.output
    rejected = client.get("/")
    assert (rejected.status_code, rejected.headers["Retry-After"]) == (429, "3600")
    assert "ip=127.0.0.1" in runner.invoke(args=["ratelimit", "bans"]).output
    assert runner.invoke(args=["ratelimit", "unban", "home", "ip=127.0.0.1"]).exit_code == 0


def test_a_ban_of_a_rule_with_limits_from_a_function_shows_the_function(tmp_path: Path) -> None:
    """The command does not know the limits of a client that has no counts."""
    app = Flask(__name__)
    RateLimiter(app, settings={"store": f"lmdb://{tmp_path}/db", "store_timeout": "10s"})

    def limits_of(ip: str) -> str:
        return "9/minute"

    @app.get("/")
    @limit(limits_of, name="home", ban=BAN)
    def home() -> str:
        return "hello"

    store = LmdbStore(f"{tmp_path}/db")
    store.start()
    store.close()
    runner = app.test_cli_runner()
    assert runner.invoke(args=["ratelimit", "ban", "home", "ip=192.0.2.9"]).exit_code == 0
    keys = json.loads(runner.invoke(args=["ratelimit", "bans", "--json"]).stdout)["bans"]
    assert [(key["client"], key["quota"].endswith("limits_of()"), key["banned"]) for key in keys] == [
        ("ip=192.0.2.9", True, True)
    ]


def test_a_replay_counts_rejections_during_bans(tmp_path: Path) -> None:
    files = Files(tmp_path)
    settings, log = files.rules({**LOGIN, "match": {"path": "/"}}), files.log([line(at=second) for second in range(6)])
    (rule,) = json.loads(run("replay", settings, log, "--json").stdout)["rules"]
    assert (rule["matched"], rule["rejected"], rule["banned"]) == (6, 5, 3)
    assert "rejected  of which banned  share" in run("replay", settings, log).stdout
