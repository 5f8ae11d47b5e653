"""``ratelimit-mw inspect`` and ``reset``: what is counted under which key, and the command that forgets it."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from click.testing import Result
from command_line import Files, answer_of, run
from decision_service import LOCAL, TOKEN
from flask import Flask
from redis_handles import address
from servers import HOST, Server

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.cli.serve.app import DecisionService
from ratelimit_mw.flask import RateLimiter, limit

LOGIN = {"name": "login", "match": {"path": "/login"}, "key": ["email", "ip"], "limits": ["2/hour", "20/day"]}
PAGES = {"name": "pages", "match": {"path": "/pages"}, "key": ["user|ip"], "limits": "3/hour"}
PLANS = {**PAGES, "name": "plans", "match": {"path": "/plans"}, "per": {"plan": {"free": "1/hour", "pro": "9/hour"}}}
EVERYBODY = {"name": "everybody", "match": {"path": "/all"}, "key": [], "limits": "5/hour"}
ANN = {"ip": "192.0.2.7", "email": "Ann@Example.com"}


class Site:
    """A settings file with a store, and an application that counts requests in it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.limiter = Limiter.from_settings(file)

    def hit(self, path: str, times: int = 1, **features: Any) -> None:
        for _ in range(times):
            self.limiter.hit({"path": path, "method": "GET", **features})

    def inspect(self, *options: str, exit_code: int = 0) -> Result:
        result = run("inspect", self.file, *options)
        assert result.exit_code == exit_code, result.output
        return result

    def reset(self, *words: str, exit_code: int = 0) -> Result:
        result = run("reset", self.file, *words)
        assert result.exit_code == exit_code, result.output
        return result

    def keys(self, *options: str) -> list[dict[str, Any]]:
        keys: list[dict[str, Any]] = json.loads(self.inspect(*options, "--json").stdout)["keys"]
        return keys


Sites = Callable[..., Site]


@pytest.fixture(params=["lmdb", "redis"])
def site(request: pytest.FixtureRequest, tmp_path: Path, redis_server: Server) -> Iterator[Sites]:
    """Returns a site with these rules, on a store that lists keys."""
    prefix = f"?prefix={tmp_path.name}:"
    stores = {"lmdb": f"lmdb://{tmp_path}/db", "redis": address(redis_server, prefix)}
    with sites(tmp_path, stores[request.param]) as build:
        yield build


@contextmanager
def sites(folder: Path, store: str) -> Iterator[Sites]:
    built: list[Site] = []

    def build(*rules: dict[str, Any], **settings: Any) -> Site:
        patient = {"store_timeout": "10s", "rejection_cache": 0, **settings}
        built.append(Site(Files(folder).rules(*rules, store=store, **patient)))
        return built[-1]

    try:
        yield build
    finally:
        for each in built:
            each.limiter.close()


def columns(result: Result) -> list[list[str]]:
    """Return the cells of a table, without its title and head."""
    lines = result.stdout.partition("─")[2].splitlines()[1:]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines if "  " in line]


def test_the_keys_of_one_client_are_shown_for_all_rules(site: Sites) -> None:
    """You know the IP address only. The command lists the keys of a rule that counts by more."""
    shop = site(LOGIN, PAGES, EVERYBODY)
    shop.hit("/login", 3, **ANN)
    shop.hit("/pages", 1, ip="192.0.2.7")
    shop.hit("/pages", 1, ip="192.0.2.8")
    shop.hit("/all", 1, ip="192.0.2.8")
    keys = shop.keys("--feature=ip=192.0.2.7")
    assert sorted((key["rule"], key["client"], key["remaining"], key["allowed"]) for key in keys) == [
        ("everybody", "", 4, True),
        ("login", "email=ann@example.com ip=192.0.2.7", 0, False),
        ("login", "email=ann@example.com ip=192.0.2.7", 18, True),
        ("pages", "ip=192.0.2.7", 2, True),
    ]
    assert keys[0]["allowed"] is False  # rejected keys come first


def test_the_admin_api_has_the_same_json(site: Sites) -> None:
    """A program reads the keys of a command and of the service alike."""
    shop = site(LOGIN, PAGES)
    shop.hit("/login", 3, **ANN)
    served = {(key["rule"], key["quota"]): key for key in asyncio.run(keys_of_the_service(shop.file))}
    assert len(served) == 2
    shown = shop.keys()
    assert len(shown) == 2
    for key in shown:
        other = served[key["rule"], key["quota"]]
        assert key.keys() == other.keys()
        same = ("rule", "client", "unit", "mode", "allowed", "banned", "limit", "remaining", "key")
        assert [key[name] for name in same] == [other[name] for name in same]


async def keys_of_the_service(file: Path) -> list[dict[str, Any]]:
    limiter = Limiter.from_settings(file)
    transport = httpx.ASGITransport(DecisionService(limiter, TOKEN), client=("127.0.0.1", 1234))
    async with httpx.AsyncClient(
        transport=transport, base_url=LOCAL, headers={"authorization": f"Bearer {TOKEN}"}
    ) as client:
        keys: list[dict[str, Any]] = []
        cursor: str | None = ""
        while cursor is not None:  # a busy store shows fewer keys at a time
            page = (await client.get("/v1/keys", params={"cursor": cursor})).json()
            keys, cursor = keys + page["keys"], page["cursor"]
    await limiter.aclose()
    return keys


def test_a_rejected_client_is_found_and_unlocked(site: Sites) -> None:
    """The table shows rule and end of the rejection. The command to copy unlocks the client, with all limits."""
    shop = site(LOGIN, PAGES)
    shop.hit("/login", 3, **ANN)
    shop.hit("/login", 1, ip="192.0.2.8", email="bob@example.com")
    result = shop.inspect("--rejected")
    [[rule, client, limit, remaining, state, *_]] = columns(result)
    assert (rule, client, limit, remaining) == ("login", "email=ann@example.com ip=192.0.2.7", "2/hour", "0 of 2")
    assert state.startswith("rejected until 2")
    [line] = [line for line in result.stdout.splitlines() if line.startswith("To reset: ")]
    words = shlex.split(line.removeprefix("To reset: "))
    assert words == ["ratelimit-mw", "reset", str(shop.file), "login", "email=ann@example.com", "ip=192.0.2.7"]
    assert sorted(row[2:4] for row in columns(run(*words[1:]))) == [["2/hour", "2 of 2"], ["20/day", "2 of 20"]]
    assert not shop.inspect("--rejected", exit_code=1).stdout
    assert shop.limiter.peek({"path": "/login", "method": "GET", **ANN}).allowed
    assert len(shop.keys()) == 2  # those of the other client


def test_keys_are_found_by_rule_and_by_the_start_of_a_value(site: Sites) -> None:
    shop = site(LOGIN, PAGES)
    shop.hit("/login", 1, **ANN)
    for host in (7, 8, 99):
        shop.hit("/pages", 1, ip=f"192.0.2.{host}")
    assert sorted(key["client"] for key in shop.keys("--rule=pages")) == [
        "ip=192.0.2.7",
        "ip=192.0.2.8",
        "ip=192.0.2.99",
    ]
    assert {key["rule"] for key in shop.keys("--prefix=ip=192.0.2.7")} == {"login", "pages"}
    assert {key["client"] for key in shop.keys("--prefix=email=ann")} == {"email=ann@example.com ip=192.0.2.7"}
    assert {key["rule"] for key in shop.keys("--prefix=email=ANN", "--feature=ip=192.0.2.7")} == {"login"}
    assert "no client matches" in shop.inspect("--prefix=ip=10.", exit_code=1).stderr
    assert "expected NAME=VALUE; got '192.0.2.'" in shop.inspect("--prefix=192.0.2.", exit_code=1).stderr
    assert "no rule uses ipp" in shop.inspect("--prefix=ipp=192.", exit_code=1).stderr
    assert "unknown rule 'page'. Did you mean 'pages'?" in shop.inspect("--rule=page", exit_code=1).stderr


def test_the_notes_name_the_rules_that_need_more(site: Sites) -> None:
    """Nothing stays silent: the rule of another feature, a list, and the limits of a plan."""
    shop = site(PLANS, {**PAGES, "name": "keys", "key": ["header:x-api-key"]}, lists={"deny": {"ip": ["192.0.2.7"]}})
    shop.limiter.rules.lists.entries.clear()
    shop.hit("/plans", 1, ip="192.0.2.7")
    answer = answer_of("inspect", shop.file, "--feature", "ip=192.0.2.7")
    assert answer.notes == [
        "this client is on the deny list, so its requests are rejected with 403. A reset does not change this",
        "some rules have keys of other features, which you can name: keys (header:x-api-key)",
        "rule plans has limits by plan. The lowest decide, unless you name it",
    ]
    assert [key["quota"] for key in answer.json["keys"]] == ["1/hour"]
    [key] = shop.keys("--feature=ip=192.0.2.7", "--feature=plan=pro")
    assert (key["quota"], key["allowed"]) == ("9/hour", True)


def test_a_reset_without_counts_is_a_mistake(site: Sites) -> None:
    """A typo must not look like success."""
    shop = site(PAGES)
    shop.hit("/pages", 1, ip="192.0.2.7")
    result = shop.reset("pages", "ip=192.0.2.9", exit_code=1)
    assert "rule pages has no counts of ip=192.0.2.9" in result.stderr
    assert len(shop.keys()) == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["login", "ip=192.0.2.7"], "the key of rule 'login' needs email"),
        (
            ["login", "ip=192.0.2.7", "email=a@b.c", "usr=ann"],
            "rule 'login' does not use usr. Its key is: email and ip",
        ),
        (
            ["login", "ip=192.0.2", "email=a@b.c"],
            "ip: expected an IP address or a network such as \"10.0.0.0/8\": '192.0.2'",
        ),
        ([], "rule: is missing. Send the name of a rule"),
        (["login", "--key", "login"], "set either key, or rule and features"),
        (["--key", "login"], "key: expected a key as inspect() and GET /v1/keys show it"),
        (["--key", "1|gone|sliding-window|1h|{ip=1}"], "unknown rule 'gone'"),
    ],
)
def test_a_wrong_reset_shows_the_right_one(tmp_path: Path, words: list[str], problem: str) -> None:
    """No store is needed for these messages, and none is opened."""
    with sites(tmp_path, "redis://127.0.0.1:1/0") as build:
        file = build(LOGIN).file
    result = run("reset", file, *words)
    assert result.exit_code in (1, 2)
    assert problem.format(file=file) in result.stderr


def test_a_digest_is_found_with_the_secret_and_reset_by_its_key(site: Sites) -> None:
    """You write the address. A key that you do not know is reset as it is listed. A wrong secret finds nothing."""
    shop = site(PAGES, secret="correct horse battery staple")
    shop.hit("/pages", 4, ip="192.0.2.7")
    [listed] = shop.keys("--rejected")
    assert "192.0.2.7" not in json.dumps(listed)
    [found] = shop.keys("--feature=ip=192.0.2.7")
    assert found["key"] == listed["key"]
    of_digest = shop.inspect(f"--prefix={listed['client'][:4]}", exit_code=1)  # the start of a digest is no value
    assert "prefix: the keys have digests of ip. Name the whole value as a feature" in of_digest.stderr
    other = Files(shop.file.parent / "..").folder / "other.json"
    other.write_text(shop.file.read_text().replace("staple", "stable"))
    result = run("reset", other, "pages", "ip=192.0.2.7")
    assert result.exit_code == 1
    assert "has no counts of ip=192.0.2.7" in result.stderr
    assert "The keys have digests of user and ip. The secret must be that of the application" in result.stderr
    [line] = [line for line in shop.inspect("--rejected").stdout.splitlines() if line.startswith("To reset: ")]
    assert shlex.split(line)[-2:] == ["--key", listed["key"]]
    shop.reset("--key", listed["key"])
    assert not shop.inspect(exit_code=1).stdout


def test_control_characters_are_escaped(site: Sites) -> None:
    """A client cannot write to the terminal of an operator. Its key is reset all the same."""
    shop = site({"name": "views", "match": {"path": "/v"}, "key": ["endpoint"], "limits": "1/hour"})
    shop.hit("/v", 1, endpoint="/é\x1b[31m\u202e'b")
    result = shop.inspect("--rejected")
    assert "endpoint=/é\\x1b[31m\\u202e'b" in result.stdout
    assert shop.reset("views", "endpoint=/é\x1b[31m\u202e'b").exit_code == 0


def test_many_keys_end_at_the_limit(site: Sites) -> None:
    shop = site(PAGES)
    for host in range(30):
        shop.hit("/pages", 1, ip=f"192.0.2.{host + 1}")
    result = shop.inspect("--limit=10")
    assert len(columns(result)) == 10
    assert "there are more than 10 keys. Raise --limit" in result.stderr
    assert json.loads(shop.inspect("--limit=10", "--json").stdout)["has_more"] is True
    assert len(shop.keys("--limit=30")) == 30


def test_keys_of_other_rules_are_named(site: Sites) -> None:
    """A file may lack the rules of the decorators of an application."""
    shop = site(PAGES, LOGIN)
    shop.hit("/pages", 1, ip="192.0.2.7")
    Files(shop.file.parent).rules(LOGIN, store=json.loads(shop.file.read_text())["store"])
    result = shop.inspect(exit_code=1)
    assert "other rules, such as those of decorators, have clients, too: pages" in result.stderr


def test_the_cache_of_the_processes_is_noted(site: Sites) -> None:
    shop = site({**PAGES, "consistency": "leased"}, rejection_cache="2s")
    shop.hit("/pages", 1, ip="192.0.2.7")
    shop.limiter.close()
    result = run("reset", shop.file, "pages", "ip=192.0.2.7")
    assert "your workers may repeat their last rejection for up to 2 s (rejection_cache)" in result.stderr
    assert 'rule pages has consistency = "leased": each worker still has counts of its own' in result.stderr


def test_memcached_finds_the_key_that_you_name(memcached_server: Server, tmp_path: Path) -> None:
    """It cannot list keys. The error has the command that works."""
    store = f"memcached://{HOST}:{memcached_server.port}?prefix=inspect:"
    with sites(tmp_path, store) as build:
        shop = build(LOGIN, PAGES, EVERYBODY)
        shop.hit("/login", 3, **ANN)
        error = shop.inspect(exit_code=1).stderr
        assert "cannot list its keys. Inspect the key of one client instead" in error
        shop.hit("/all", 1, ip="192.0.2.8")
        assert [key["remaining"] for key in shop.keys("--rule=everybody")] == [4]
        shop.reset("everybody")
        result = shop.inspect("--feature=ip=192.0.2.7", exit_code=1)
        assert "the keys of login could not be listed" in result.stderr
        [rejected] = shop.keys("--feature=ip=192.0.2.7", "--feature=email=ann@example.com", "--rejected")
        shop.reset("--key", rejected["key"])
        shop.reset("login", "ip=192.0.2.7", "email=ann@example.com", exit_code=1)


def test_a_user_without_the_right_to_list_keys(tmp_path: Path, own_server: Server, server: redis.Redis) -> None:
    """The keys with all their features are found anyway."""
    server.acl_setuser("shop", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-scan"])
    try:
        with sites(tmp_path, f"redis://shop:pw@{HOST}:{own_server.port}/0") as build:
            shop = build(LOGIN, PAGES, EVERYBODY)  # the last rule has one key, which is found
            shop.hit("/pages", 1, ip="192.0.2.7")
            error = shop.inspect("--rejected", exit_code=1).stderr
            assert "the user of the store needs the right +scan" in error
            assert "no client is rejected" not in error
            result = shop.inspect("--feature=ip=192.0.2.7")
            assert len(columns(result)) == 1
            assert "the keys of login could not be listed" in result.stderr
            assert (
                "no rule uses usr. Did you mean user? The rules use email, ip, user"
                in shop.inspect("--feature=usr=ann", exit_code=1).stderr
            )
    finally:
        server.acl_deluser("shop")


def test_errors_are_json_too(tmp_path: Path) -> None:
    """The memory of an application is out of reach of a command. The message names what works."""
    result = run("inspect", Files(tmp_path).rules(PAGES), "--json")
    assert result.exit_code == 1
    message = json.loads(result.stdout)["error"]
    assert "the store memory:// is in each process of your application" in message
    assert "ratelimit-mw serve" in message


def test_flask_has_the_same_commands(tmp_path: Path) -> None:
    """They know the limits of decorators. The command to copy is that of Flask."""
    app = Flask("shop")

    @app.get("/items")
    @limit("1/hour", key=["ip"], name="items")
    def items() -> str:
        return "ok"

    RateLimiter(app, settings={"store": f"lmdb://{tmp_path}/db", "store_timeout": "10s", "rejection_cache": 0})
    client = app.test_client()
    assert [client.get("/items").status_code for _ in range(2)] == [200, 429]
    result = app.test_cli_runner().invoke(args=["ratelimit", "inspect", "--rejected"])
    [line] = [line for line in result.output.splitlines() if line.startswith("To reset: ")]
    words = shlex.split(line.removeprefix("To reset: "))
    assert words == ["flask", "ratelimit", "reset", "items", "ip=127.0.0.1"]
    assert app.test_cli_runner().invoke(args=words[1:]).exit_code == 0
    assert app.test_cli_runner().invoke(args=["ratelimit", "inspect", "--rejected"]).exit_code == 1
    assert client.get("/items").status_code == 200


def shop_of_functions(store: str) -> Flask:
    app = Flask("shop")
    rules = [
        Rule(name="plan", key=["user", "ip"], limits=lambda user, ip: "1/hour"),
        Rule(name="table", key=["user"], limits="9/hour", per_key=lambda user: "1/hour"),
        Rule(name="fixed", key=["user"], limits="9/hour"),
    ]
    RateLimiter(app, limiter=Limiter(rules, store), features={"user": lambda request: "ann"})
    return app


def test_limits_from_a_function_need_the_features_of_a_key(redis_server: Server, tmp_path: Path) -> None:
    """No list claims that such a rule rejects no client: a note names the rule, and the features of its key."""
    store = address(redis_server, f"?prefix={tmp_path.name}:")
    client = shop_of_functions(store).test_client()
    assert [client.get("/").status_code for _ in range(2)] == [404, 429]

    def inspected(*options: str) -> tuple[list[str], str]:
        # Another process, which has called no function.
        result = shop_of_functions(store).test_cli_runner().invoke(args=["ratelimit", "inspect", *options, "--json"])
        shown = json.loads(result.stdout)
        assert result.exit_code == (not shown["keys"])
        return [key["rule"] for key in shown["keys"]], result.stderr

    needs = "some rules have limits from a function, so their keys are not listed. Name all features: plan ({})"
    several = needs.format("user and ip), table (user")
    assert inspected("--rejected") == ([], f"{several}\nno other client is rejected now\n")
    assert inspected() == (["fixed"], f"{several}\n")
    assert inspected("--feature=user=ann") == (["table", "fixed"], f"{needs.format('ip')}\n")
    assert inspected("--rejected", "--feature=user=ann", "--feature=ip=127.0.0.1") == (["plan", "table"], "")
    nobody = inspected("--rejected", "--feature=user=bob", "--feature=ip=127.0.0.1")
    assert nobody == ([], "no client is rejected now\n")
