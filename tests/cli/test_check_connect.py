"""``ratelimit-mw check --connect`` finds what is wrong with the store, and says how to repair it."""

import json
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import redis
from command_line import Files, run
from redis_handles import address
from servers import HOST, STEADY, Server, cluster_running, redis_running, sentinel_running, wait_for
from tables import each

from ratelimit_mw import Limiter
from ratelimit_mw.cli import operate
from ratelimit_mw.cli.connect import FACT, NOTE, PROBLEM, examine_part, examine_store
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.stores.base import Facts
from ratelimit_mw.stores.redis import router

SITE = {"name": "site", "key": ["ip"], "limits": "5/minute"}
PATIENT = {"store_timeout": "10s"}


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the variables of a test are set."""
    monkeypatch.delenv("WEB_CONCURRENCY", raising=False)


def connected(*words: object, exit_code: int = 0) -> dict[str, Any]:
    result = run("check", *words, "--connect", "--json")
    assert result.exit_code == exit_code, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def of(subject: str, texts: Iterable[str]) -> list[str]:
    return [text for text in texts if text.startswith(subject)]


def test_a_store_that_works_has_no_problem(tmp_path: Path, redis_server: Server) -> None:
    """The facts are the round trip, the processes, and the server with its policy. No count changes.

    Where no process has used the store, the application may use another one. This is a note, so --strict fails.
    """
    file = Files(tmp_path).rules(SITE, store=address(redis_server, f"?prefix={tmp_path.name}:"), **PATIENT)
    assert len(of("workers: no running process", connected(file)["notes"])) == 1
    connected(file, "--strict", exit_code=1)
    limiter = Limiter.from_settings(file)
    limiter.hit({"ip": "192.0.2.7"})
    report = connected(file)
    assert report["problems"] == []
    assert [text.partition(":")[0] for text in report["facts"][:3]] == ["store", "round trip", "workers"]
    assert of("workers", report["facts"]) == ["workers: 1 process uses the store"]
    [server] = of("redis", report["facts"])
    assert "role master" in server
    assert "maxmemory_policy noeviction" in server
    assert limiter.clients.inspect().decisions[0].remaining == 4
    limiter.close()


def test_the_text_has_a_line_for_each_finding(tmp_path: Path, redis_server: Server) -> None:
    """Facts, problems and notes follow the table of rules. Without the option, no connection is opened."""
    file = Files(tmp_path).rules(SITE, store=address(redis_server), fleet_size=3, **PATIENT)
    result = run("check", file, "--connect")
    assert result.exit_code == 0
    assert "workers: fleet_size = 3, so processes are not counted" in result.stdout.splitlines()
    dead = Files(tmp_path).rules(SITE, store=f"redis://{HOST}:1/0")
    result = run("check", dead, "--connect")
    assert result.exit_code == 1
    assert f"problem: store: redis://{HOST}:1/0 failed (" in result.stdout
    result = run("check", dead, "--json")
    assert (result.exit_code, "facts" in json.loads(result.stdout)) == (0, False)


def test_a_dead_store_is_a_problem(tmp_path: Path) -> None:
    """The problems of the settings come first."""
    file = Files(tmp_path).rules({**SITE, "cost": 9}, store=f"redis://{HOST}:1/0")
    cost, store = connected(file, exit_code=1)["problems"]
    assert "site: the cost 9 is above the limit" in cost
    assert "requests are decided by on_store_error = 'local'" in store


class OwnStore(MemoryStore):
    """A store of an application that knows two parts."""

    waits = True

    def facts(self) -> list[Facts]:
        return [Facts("shard", "one", {"keys": 7, "size": "3 GB"}), Facts("shard", "two", {}, "it is full")]


def test_a_store_of_your_own_shows_its_facts() -> None:
    """Its values are a fact, and a part with a problem is a note."""
    limiter = Limiter([], OwnStore())
    limiter.waits = True
    fine, broken = (each for each in examine_store(limiter, limiter.settings) if each[1].startswith("shard"))
    assert fine == (FACT, "shard one: keys 7, size 3 GB")
    fix = "Check the server, the network, the login and the rights of its user"
    assert broken == (NOTE, f"shard two: its state is not known (it is full). {fix}")


@pytest.mark.slow
def test_a_silent_store_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each probe has a bounded time."""
    monkeypatch.setattr(router, "_FACTS_SECONDS", 0.2)
    monkeypatch.setattr(operate, "_TIMEOUT_US", 200_000)
    with redis_running(tmp_path) as server:
        file = Files(tmp_path).rules(SITE, store=address(server))
        server.pause()
        try:
            assert len(connected(file, exit_code=1)["problems"]) == 1
        finally:
            server.resume()


def test_a_policy_that_evicts_is_a_problem(tmp_path: Path, own_server: Server, server: redis.Redis) -> None:
    """The message names the policy to set."""
    file = Files(tmp_path).rules(SITE, store=address(own_server), **PATIENT)
    server.config_set("maxmemory", "100mb")
    server.config_set("maxmemory-policy", "allkeys-lru")
    try:
        [problem] = connected(file, exit_code=1)["problems"]
    finally:
        server.config_set("maxmemory", 0)
        server.config_set("maxmemory-policy", "noeviction")
    assert ": allkeys-lru evicts keys when memory is full" in problem
    assert problem.endswith("Set maxmemory-policy to noeviction, or volatile-ttl")


@each(
    ("denied", "kind", "said", "fix"),
    [
        (["-info"], "notes", "redis", "the rights of its user"),
        (["-eval", "-evalsha"], "problems", "store", "correct the URL, the login or the rights of its user"),
    ],
)
def test_a_user_without_a_right_is_told_so(
    tmp_path: Path, own_server: Server, server: redis.Redis, denied: list[str], kind: str, said: str, fix: str
) -> None:
    server.acl_setuser("shop", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", *denied])
    try:
        store = f"redis://shop:pw@{HOST}:{own_server.port}/0"
        [text] = of(
            said, connected(Files(tmp_path).rules(SITE, store=store, **PATIENT), exit_code=kind == "problems")[kind]
        )
    finally:
        server.acl_deluser("shop")
    assert (text.endswith(fix), "NOPERM" in text, ":pw@" in text) == (True, True, False)


REDIS = {"redis_version": "7.2.4", "role": "master", "maxmemory_policy": "noeviction"}
SLOW_CLOCK = {**REDIS, "server_time_usec": "1000000"}
EVICTING = {**REDIS, "maxmemory": "10000", "maxmemory_policy": "volatile-lru", "evicted_keys": "1"}
MEMCACHED = {"evictions": "5", "time": "1000"}


@each(
    ("part", "values", "problems"),
    [
        ("redis", REDIS, []),
        ("redis", {**REDIS, "role": "slave"}, ["is a replica, which takes no writes"]),
        ("replica", {**REDIS, "role": "slave"}, []),
        ("redis", {**REDIS, "evicted_keys": "7"}, ["7 keys were evicted, so their clients started at zero"]),
        ("redis", EVICTING, ["volatile-lru evicts keys"]),
        ("cluster", {"cluster_state": "fail", "cluster_slots_ok": "7"}, ["some of the 16,384 slots have no server"]),
        ("memcached", MEMCACHED, ["5 keys were evicted"]),
    ],
)
def test_the_state_of_a_part_is_judged(part: str, values: dict[str, Any], problems: list[str]) -> None:
    """Role, memory, policy and slots."""
    found = [text.partition("a:1: ")[2] for kind, text in examine_part(Facts(part, "a:1", values)) if kind == PROBLEM]
    assert [text[: len(start)] for text, start in zip(found, problems, strict=True)] == problems


@each(
    ("facts", "found"),
    [
        (Facts("redis", "a:1", SLOW_CLOCK), [(FACT, "redis_version 7.2.4, role master"), (NOTE, "its clock is ")]),
        (Facts("memcached", "a:1", {}, "permission denied"), [(NOTE, "its state is not known (permission denied)")]),
    ],
)
def test_a_finding_that_is_no_problem_is_a_fact_or_a_note(facts: Facts, found: list[tuple[str, str]]) -> None:
    texts = [(kind, text.partition("a:1: ")[2]) for kind, text in examine_part(facts)]
    assert [(kind, text[: len(start)]) for (kind, text), (_, start) in zip(texts, found, strict=True)] == found


@pytest.mark.thorough
@pytest.mark.slow
def test_each_server_of_a_cluster_is_examined(tmp_path: Path) -> None:
    """A dead replica is a note, and a dead primary whose slots are missing is a problem."""
    with cluster_running(tmp_path, *STEADY) as nodes:  # no node names a replica that it knows to be dead
        file = Files(tmp_path).rules(SITE, store=f"redis+cluster://{HOST}:{nodes[0].port}", **PATIENT)
        wait_for(lambda: len(of("replica", connected(file)["facts"])) == 3, "the cluster to name its replicas")
        facts = connected(file)["facts"]
        assert sorted(text.partition(": ")[0] for text in [*of("redis", facts), *of("replica", facts)]) == sorted(
            [f"redis {HOST}:{node.port}" for node in nodes[:3]] + [f"replica {HOST}:{node.port}" for node in nodes[3:]]
        )
        [slots] = of("cluster", facts)
        assert slots.endswith(": cluster_state ok, cluster_slots_ok 16384, cluster_size 3, cluster_known_nodes 6")
        nodes[4].kill()
        [dead] = [text for text in connected(file)["notes"] if "is not known" in text]
        assert dead.startswith(f"replica {HOST}:{nodes[4].port}: ")
        nodes[1].kill()
        assert len(of("store", connected(file, exit_code=1)["problems"])) == 1


@pytest.mark.slow
def test_each_sentinel_is_asked(tmp_path: Path) -> None:
    """A sentinel that is gone is a note, while another one knows the primary."""
    with redis_running(tmp_path) as primary, sentinel_running(tmp_path, "shop", primary) as sentinel:
        store = f"redis+sentinel://{HOST}:{sentinel.port},{HOST}:1/shop/0"
        report = connected(Files(tmp_path).rules(SITE, store=store, **PATIENT))
        assert f": ip {HOST}, port {primary.port}, flags master" in of("sentinel", report["facts"])[0]
        assert "is not known" in of(f"sentinel {HOST}:1", report["notes"])[0]
        assert len(of(f"redis {HOST}:{primary.port}", report["facts"])) == 1


def test_the_client_of_an_application_is_used(folder: Path, redis_server: Server) -> None:
    """With --app, the store is that of the application."""
    code = f"""
        import redis
        from ratelimit_mw import Limiter, Rule
        from ratelimit_mw.stores import RedisStore
        from ratelimit_mw.wsgi import RateLimitMiddleware
        client = redis.Redis(host="{HOST}", port={redis_server.port})
        limiter = Limiter([Rule(name="site", limits="5/minute")], RedisStore(client=client, timeout_us=10_000_000))
        app = RateLimitMiddleware(lambda environ, start: start("200 OK", []) or [], limiter=limiter)
    """
    (folder / "connected_shop.py").write_text(textwrap.dedent(code))
    facts = connected("--app", "connected_shop:app")["facts"]
    sys.modules.pop("connected_shop").client.connection_pool.disconnect()
    assert facts[0] == f"store: redis://{HOST}:{redis_server.port}/0 replies"
    assert "role master" in of("redis redis://", facts)[0]


def test_each_memcached_is_examined(tmp_path: Path, memcached_server: Server) -> None:
    """One of two servers is away: its keys belong to no other server."""
    store = f"memcached://{HOST}:{memcached_server.port}"
    report = connected(Files(tmp_path).rules(SITE, store=f"{store},{HOST}:1", **PATIENT), exit_code=1)
    [known] = of("memcached", report["facts"])
    assert known.endswith(", evictions 0")
    assert len(of("store", report["problems"])) == len(of(f"memcached {HOST}:1", report["notes"])) == 1


def test_the_store_of_an_lmdb_is_not_created(tmp_path: Path) -> None:
    """A path that does not exist is a problem, and stays so."""
    file = Files(tmp_path).rules(SITE, store=f"lmdb://{tmp_path}/db?size=8MiB", **PATIENT)
    assert "does not exist. Check the path" in of("store", connected(file, exit_code=1)["problems"])[0]
    assert not (tmp_path / "db").exists()


def test_several_processes_need_a_shared_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process with memory:// has a note only."""
    file = Files(tmp_path).rules(SITE)
    assert connected(file)["problems"] == []
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    assert "4 processes with memory:// allow up to 4 times each limit" in connected(file, exit_code=1)["problems"][0]
