"""The commands of the operations, on the stores of a running application. ``tests/operations`` has their answers."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import Result
from command_line import Files, answer_of, run, run_with
from flask import Flask
from redis_handles import address
from servers import HOST, Server, redis_running

from ratelimit_mw import Limiter
from ratelimit_mw.cli.operate import open_limiter
from ratelimit_mw.cli.output import Failure
from ratelimit_mw.cli.source import Source
from ratelimit_mw.flask import RateLimiter, limit

LOGIN = {"name": "login", "match": {"path": "/login"}, "key": ["email", "ip"], "limits": ["2/hour", "20/day"]}
PAGES = {"name": "pages", "match": {"path": "/pages"}, "key": ["user|ip"], "limits": "3/hour"}
EVERYBODY = {"name": "everybody", "match": {"path": "/all"}, "key": [], "limits": "5/hour"}
BAN = {"after": 2, "within": "10m", "for": "1h"}
BANNING = {"name": "banning", "match": {"path": "/ban"}, "limits": "1/hour", "ban": BAN}
ANN = {"ip": "192.0.2.7", "email": "Ann@Example.com"}


class Site:
    """A settings file with a store, and an application that counts requests in it. Only that has the observers."""

    def __init__(self, folder: Path, store: str, *rules: dict[str, Any], **settings: Any) -> None:
        options = {"store_timeout": "10s", "rejection_cache": 0, "observers": ["nowhere:count"], **settings}
        self.file = Files(folder).rules(*(rules or (LOGIN, PAGES, EVERYBODY, BANNING)), store=store, **options)
        self.limiter = Limiter.from_settings(self.file, observers=())
        self.limiter.start()

    def hit(self, path: str, times: int = 1, **features: Any) -> None:
        for _ in range(times):
            self.limiter.hit({"path": path, "method": "GET", **features})

    def run(self, command: str, *words: str, exit_code: int = 0) -> Result:
        result = run(*command.split(), self.file, *words)
        assert result.exit_code == exit_code, result.output
        return result


@pytest.fixture
def build() -> Iterator[Callable[..., Site]]:
    """Builds sites, and closes their limiters."""
    sites: list[Site] = []

    def build_site(*arguments: Any, **settings: Any) -> Site:
        sites.append(Site(*arguments, **settings))
        return sites[-1]

    yield build_site
    for site in sites:
        site.limiter.close()


@pytest.fixture(params=["lmdb", "redis", "memcached"])
def site(request: pytest.FixtureRequest, tmp_path: Path, build: Callable[..., Site]) -> Site:
    """A site on each store that processes share."""
    if request.param == "lmdb":
        return build(tmp_path, f"lmdb://{tmp_path}/db")
    server: Server = request.getfixturevalue(f"{request.param}_server")
    prefix = f"?prefix={tmp_path.name}:"
    return build(
        tmp_path, address(server, prefix) if request.param == "redis" else f"memcached://{HOST}:{server.port}{prefix}"
    )


def test_a_blocked_client_is_found_and_unlocked(site: Site) -> None:
    """The values of the table reset the client in the store of the application."""
    site.hit("/login", 3, **ANN)
    features = ("--feature=ip=192.0.2.7", "--feature=email=ann@example.com")
    [key] = json.loads(site.run("inspect", "--rejected", *features, "--json").stdout)["keys"]
    assert key["client"] == "email=ann@example.com ip=192.0.2.7"
    site.run("reset", key["rule"], *key["client"].split())
    assert not site.run("inspect", "--rejected", *features, exit_code=1).stdout
    assert site.limiter.peek({"path": "/login", "method": "GET", **ANN}).allowed


def test_a_client_is_banned_and_gets_other_limits(site: Site) -> None:
    """The application follows at once, or when it starts."""
    who = {"path": "/ban", "method": "GET", "ip": "192.0.2.9"}
    assert "is banned from rule banning until 20" in site.run("ban", "banning", "ip=192.0.2.9", "--for", "2h").stdout
    verdict = site.limiter.hit(who)
    assert verdict.banned
    assert 7_000 < (verdict.retry_after or 0) <= 7_200
    assert "is no longer banned" in site.run("unban", "banning", "ip=192.0.2.9").stdout
    assert site.limiter.hit(who).allowed
    assert "is banned from all rules until 20" in site.run("ban", "ip=192.0.2.9", "--for", "2h").stdout
    assert "no client is named" in site.run("ban", exit_code=1).stderr
    assert "is no longer banned from all rules" in site.run("unban", "ip=192.0.2.9").stdout
    assert "was not banned from all rules" in site.run("unban", "ip=192.0.2.9", exit_code=1).stderr
    site.run("override set", "pages", "user=Acme", "1000/hour; 20000/day", "--for", "7d")
    assert limits(site.file, user="acme") == ["1000/hour", "20000/day"]
    site.run("override remove", "pages", "user=acme")
    assert limits(site.file, user="acme") == ["3/hour"]


def limits(file: Path, **features: Any) -> list[str]:
    """Return the limits of a request in a worker that starts now."""
    limiter = Limiter.from_settings(file, observers=())
    limiter.start()
    found = limiter.peek({"method": "GET", "path": "/pages", **features}, cost=0)
    limiter.close()
    return [str(decision.source.quota) for decision in found.decisions]


def test_memcached_shows_the_clients_that_you_name(
    memcached_server: Server, tmp_path: Path, build: Callable[..., Site]
) -> None:
    """It cannot list keys. The error, or the note, says so."""
    site = build(tmp_path, f"memcached://{HOST}:{memcached_server.port}?prefix=inspect:")
    site.hit("/all", 1, ip="192.0.2.8")
    assert "cannot list its keys. Inspect the key of one client instead" in site.run("inspect", exit_code=1).stderr
    assert "cannot list its keys" in site.run("bans", exit_code=1).stderr
    answer = answer_of("inspect", site.file, "--feature=ip=192.0.2.7")
    assert [key["rule"] for key in answer.json["keys"]] == ["everybody"]
    assert "the keys of login could not be listed" in answer.notes[0]


def test_a_user_without_the_right_to_list_keys(
    tmp_path: Path, own_server: Server, server: redis.Redis, build: Callable[..., Site]
) -> None:
    """The keys with all their features are found anyway."""
    server.acl_setuser("shop", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-scan"])
    try:
        site = build(tmp_path, f"redis://shop:pw@{HOST}:{own_server.port}/0")
        site.hit("/pages", 1, ip="192.0.2.7")
        error = site.run("inspect", "--rejected", exit_code=1).stderr
        assert "no permissions to run the 'scan' command" in error
        answer = answer_of("inspect", site.file, "--feature=ip=192.0.2.7")
        assert [key["rule"] for key in answer.json["keys"]] == ["pages"]
        assert "the keys of login could not be listed" in answer.notes[0]
        site.limiter.close()
    finally:
        server.acl_deluser("shop")


def test_text_of_a_client_does_not_control_the_terminal(tmp_path: Path, build: Callable[..., Site]) -> None:
    """Its key is reset all the same."""
    rule = {"name": "views", "match": {"path": "/v"}, "key": ["endpoint"], "limits": "1/hour"}
    site = build(tmp_path, f"lmdb://{tmp_path}/db", rule)
    site.hit("/v", 1, endpoint="/é\x1b[31m\u202e'b")
    assert "endpoint=/é\\x1b[31m\\u202e'b" in site.run("inspect", "--rejected").stdout
    site.run("reset", "views", "endpoint=/é\x1b[31m\u202e'b")


MISTAKES = {
    "inspect --rule page": (1, "unknown rule 'page'. Did you mean 'pages'?"),
    "inspect --feature usr=ann": (1, "The rules use email, ip, user"),
    "reset login ip=192.0.2.7": (1, "Error: features: the key of rule 'login' needs email"),
    "reset login ip=192.0.2 email=a@b.c": (2, 'ip: expected an IP address or a network such as "10.0.0.0/8"'),
    "ban banning --for soon ip=192.0.2.7": (2, "Invalid value for '--for': expected a duration such"),
    "ban banning --for 0s ip=192.0.2.7": (2, "Invalid value for '--for': expected more than 0"),
    "override set pages user=acme": (2, "expected LIMITS after 'user=acme'"),
    "override set pages user=acme 5 per minute": (2, "expected NAME=VALUE; got '5'"),
}


def test_a_mistake_has_a_message_and_an_exit_code(tmp_path: Path) -> None:
    """No store is needed for these messages, and none is opened."""
    file = Files(tmp_path).rules(LOGIN, PAGES, BANNING, store="redis://127.0.0.1:1/0")
    for words, (exit_code, message) in MISTAKES.items():
        name, *rest = words.split()
        place = [rest.pop(0)] if name == "override" else []
        result = run(name, *place, file, *rest, "--json")
        assert (result.exit_code, message in " ".join(result.stderr.split())) == (exit_code, True), result.stderr
        assert json.loads(result.stdout).keys() == {"error"}


def test_a_store_that_is_out_of_reach_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command creates no files that the application then cannot open."""
    (tmp_path / "data.mdb").touch()
    nowhere = tmp_path / "nowhere"
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    for store, message in (
        ("memory://", "the store memory:// is in each process of your application"),
        (f"lmdb://{nowhere}", f"lmdb://{nowhere} does not exist. Check the path"),
        (f"lmdb://{tmp_path}", f"belongs to the user {owner}. Run the command as this user: sudo -u '#{owner}'"),
    ):
        result = run("inspect", Files(tmp_path).rules(PAGES, store=store))
        assert (result.exit_code, message in result.stderr) == (1, True), result.stderr
    assert not nowhere.exists()
    assert not (tmp_path / "lock.mdb").exists()


@pytest.mark.slow
def test_a_store_that_fails_while_a_command_works_is_named(tmp_path: Path) -> None:
    """The message has the URL of the store."""
    with redis_running(tmp_path) as server:
        url = f"redis://{HOST}:{server.port}/0"
        source = Source.from_settings(Files(tmp_path).rules(PAGES, store=url))

        def work() -> None:
            with open_limiter(source) as limiter:
                server.kill()
                limiter.clients.inspect()

        with pytest.raises(Failure, match=rf"^{url} failed: .*`check --connect` examines its servers"):
            work()


def test_an_application_has_the_limits_of_its_decorators(tmp_path: Path) -> None:
    """All commands know them, and its store."""
    app = Flask("shop")

    app.get("/items")(limit("1/hour", key=["ip"], name="items", ban=BAN)(lambda: "ok"))
    RateLimiter(app, settings={"store": f"lmdb://{tmp_path}/db", "store_timeout": "10s", "rejection_cache": 0})
    client = app.test_client()

    def command(*words: str) -> Result:
        return run_with(app, *words)

    assert [client.get("/items").status_code for _ in range(2)] == [200, 429]
    assert "ip=127.0.0.1" in command("inspect", "--rejected").stdout
    assert command("reset", "items", "ip=127.0.0.1").exit_code == 0
    assert client.get("/items").status_code == 200
    assert command("ban", "items", "ip=127.0.0.1").exit_code == 0
    assert client.get("/items").headers["Retry-After"] == "3600"
    assert command("override", "set", "items", "ip=192.0.2.7", "9/hour").exit_code == 0
    assert "192.0.2.7" in command("override", "list", "--json").stdout
    assert "Replace all limits that RULE has for one client" in command("override", "set", "--help").stdout
