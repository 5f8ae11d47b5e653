"""``ratelimit-mw doctor`` finds what is wrong with the store and the settings, and says how to repair it."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest
import redis
from command_line import Files, run
from redis_handles import address
from servers import HOST, Server, certificates, cluster_running, redis_running, sentinel_running, tls_options

from ratelimit_mw import Limiter
from ratelimit_mw.cli.doctor.finding import Finding
from ratelimit_mw.cli.doctor.lmdb import examine_lmdb
from ratelimit_mw.cli.doctor.memcached import examine_memcached
from ratelimit_mw.cli.doctor.redis import examine_server
from ratelimit_mw.cli.doctor.store import examine_store
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.stores.facts import Facts

SITE = {"name": "site", "key": ["ip"], "limits": "5/minute"}
PATIENT = {"store_timeout": "10s"}


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the variables of a test are set."""
    for name in ("WEB_CONCURRENCY", "FORWARDED_ALLOW_IPS", "RATELIMIT_STORE"):
        monkeypatch.delenv(name, raising=False)


def examined(*words: object, exit_code: int = 0) -> list[Finding]:
    result = run("doctor", *words, "--json")
    assert result.exit_code == exit_code, result.output
    report = json.loads(result.stdout)
    findings = [Finding(**finding) for finding in report["findings"]]
    assert report["problems"] == sum(each.level == "problem" for each in findings)
    assert all(each.fix for each in findings if each.level in ("warning", "problem"))
    return findings


def of(subject: str, findings: list[Finding]) -> list[Finding]:
    return [each for each in findings if each.subject.startswith(subject)]


def problems(findings: list[Finding]) -> list[str]:
    return [each.text for each in findings if each.level == "problem"]


def test_a_store_that_works_has_no_problem(tmp_path: Path, redis_server: Server) -> None:
    """The findings have the measured values: round trip, clock, processes, versions and policy."""
    file = Files(tmp_path).rules(SITE, store=address(redis_server, f"?prefix={tmp_path.name}:"), **PATIENT)
    limiter = Limiter.from_settings(file)
    limiter.hit({"ip": "192.0.2.7"})
    findings = examined(file)
    limiter.close()
    assert problems(findings) == []
    [[trip], [clock], [workers]] = (of(name, findings) for name in ("round trip", "clock", "workers"))
    assert 0 < trip.data["median_ms"] <= trip.data["max_ms"]
    assert abs(clock.data["skew_s"]) < 1
    assert workers.data["seen"] == 1
    [versions] = of("versions", findings)
    assert {"ratelimit-mw", "Python", "redis", "hiredis"} <= versions.data.keys()
    [server] = of("server", findings)
    assert (server.data["role"], server.data["maxmemory_policy"]) == ("master", "noeviction")
    assert limiter.inspect().decisions[0].remaining == 4  # nothing was consumed


def test_the_text_has_a_line_for_each_finding_and_its_fix(tmp_path: Path) -> None:
    result = run("doctor", Files(tmp_path).rules(SITE, trusted_proxies=["0.0.0.0/0"]))
    assert result.exit_code == 1
    assert "problem  proxies: 0.0.0.0/0 trusts every client" in result.stdout
    assert "         fix: name the addresses of your proxies only" in result.stdout
    assert "1 problem, 1 warning" in result.stderr


def test_no_process_has_used_the_store(tmp_path: Path, redis_server: Server) -> None:
    """The application may use another store than you think."""
    file = Files(tmp_path).rules(SITE, store=address(redis_server, f"?prefix={tmp_path.name}:"), **PATIENT)
    [workers] = of("workers", examined(file))
    assert (workers.level, workers.data["seen"]) == ("warning", 0)
    Files(tmp_path).rules(SITE, store=address(redis_server), fleet_size=3, **PATIENT)
    assert "fleet_size = 3" in of("workers", examined(file))[0].text


def test_a_dead_store_is_a_problem(tmp_path: Path) -> None:
    findings = examined(Files(tmp_path).rules(SITE, store=f"redis://{HOST}:1/0"), exit_code=1)
    [store] = of("store", findings)
    assert "requests are decided by on_store_error = 'local'" in store.text
    assert "does not reply" in of("server", findings)[0].text


def test_a_redis_with_tls_is_examined(tmp_path: Path) -> None:
    """Each server is asked with the certificates of the store."""
    certificates(tmp_path)
    with redis_running(tmp_path, *tls_options(tmp_path), tls=True) as server:
        url = f"rediss://{HOST}:{server.port}"
        file = Files(tmp_path).rules(SITE, store=f"{url}?ssl_ca_certs={tmp_path}/cert.pem", **PATIENT)
        findings = examined(file)
        assert (problems(findings), of("server", findings)[0].data["role"]) == ([], "master")
        findings = examined(Files(tmp_path).rules(SITE, store=url), exit_code=1)
        assert ["certificate verify failed" in text for text in problems(findings)] == [True, True]


class OwnStore(MemoryStore):
    """A store of an application that knows two parts."""

    waits = True

    def facts(self) -> list[Facts]:
        return [Facts("shard", "one", {"keys": 7}), Facts("shard", "two", {}, "it is full", False)]


def test_a_store_of_your_own_shows_its_facts() -> None:
    """Its values are a finding, and a part with a problem is a problem."""
    limiter = Limiter([], OwnStore())
    limiter.waits = True
    fine, broken = of("shard", list(examine_store(limiter, limiter.settings)))
    assert (fine.subject, fine.text, fine.level, fine.data) == ("shard one", "keys 7", "ok", {"keys": 7})
    assert (broken.text, broken.level) == ("it is full", "problem")


@pytest.mark.slow
def test_a_silent_store_ends_the_command(tmp_path: Path) -> None:
    """Each probe has a bounded time."""
    with redis_running(tmp_path) as server:
        file = Files(tmp_path).rules(SITE, store=address(server))
        server.pause()
        try:
            assert len(problems(examined(file, exit_code=1))) == 2
        finally:
            server.resume()


def test_a_policy_that_evicts_is_a_problem(tmp_path: Path, own_server: Server, server: redis.Redis) -> None:
    """The message names the policy to set."""
    file = Files(tmp_path).rules(SITE, store=address(own_server), **PATIENT)
    server.config_set("maxmemory", "100mb")
    server.config_set("maxmemory-policy", "allkeys-lru")
    try:
        findings = examined(file, exit_code=1)
    finally:
        server.config_set("maxmemory", 0)
        server.config_set("maxmemory-policy", "noeviction")
    [problem] = [each for each in findings if each.level == "problem"]
    assert problem.text.startswith("allkeys-lru evicts keys when memory is full")
    assert problem.fix == "set maxmemory-policy to noeviction, or volatile-ttl"


def test_a_user_without_the_right_to_info_gets_a_warning(
    tmp_path: Path, own_server: Server, server: redis.Redis
) -> None:
    server.acl_setuser("shop", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-info"])
    try:
        store = f"redis://shop:pw@{HOST}:{own_server.port}/0"
        [finding] = of("server", examined(Files(tmp_path).rules(SITE, store=store, **PATIENT)))
    finally:
        server.acl_deluser("shop")
    assert (finding.level, "+info" in finding.fix) == ("warning", True)
    assert "pw" not in f"{finding}"


@pytest.mark.parametrize(
    ("info", "problem"),
    [
        ({"redis_version": "6.0.16"}, "Redis 6.0.16 is not supported"),
        ({"role": "slave"}, "this is a replica, which takes no writes"),
        ({"evicted_keys": "7"}, "7 keys were evicted, so limits were forgotten"),
        ({"used_memory": "95", "maxmemory": "100"}, "95% of the memory is used: calls fail when it is full"),
        ({"maxmemory": "10000", "maxmemory_policy": "volatile-lru", "evicted_keys": "1"}, "volatile-lru evicts keys"),
    ],
)
def test_the_state_of_a_redis_is_judged(info: dict[str, str], problem: str) -> None:
    """Version, role, memory and policy. Valkey has a version of its own."""
    usual = {"redis_version": "7.2.4", "role": "master", "maxmemory_policy": "noeviction"}
    [found] = problems(list(examine_server(Facts("redis", "a:1", {**usual, **info}))))
    [_, clock] = examine_server(Facts("redis", "a:1", {**usual, "server_time_usec": "1000000"}))
    assert (clock.level, "behind this machine" in clock.text) == ("warning", True)
    assert found.startswith(problem)
    assert problems(list(examine_server(Facts("redis", "a:1", {**usual, "valkey_version": "8.1.0"})))) == []


@pytest.mark.slow
def test_each_server_of_a_cluster_is_examined(tmp_path: Path) -> None:
    """A dead replica is a warning, and a dead primary whose slots are missing is a problem."""
    with cluster_running(tmp_path) as nodes:
        store = f"redis+cluster://{HOST}:{nodes[0].port}"
        file = Files(tmp_path).rules(SITE, store=store, **PATIENT)
        findings = examined(file)
        assert sorted(each.subject for each in [*of("server", findings), *of("replica", findings)]) == sorted(
            [f"server {HOST}:{node.port}" for node in nodes[:3]] + [f"replica {HOST}:{node.port}" for node in nodes[3:]]
        )
        assert of("cluster", findings)[0].text == "3 primaries of 6 servers, all slots are ok"
        nodes[4].kill()
        [dead] = [each for each in examined(file) if "does not reply" in each.text]
        assert (dead.subject, dead.level) == (f"replica {HOST}:{nodes[4].port}", "warning")
        nodes[1].kill()
        assert any("does not reply" in text for text in problems(examined(file, exit_code=1)))


@pytest.mark.slow
def test_each_sentinel_is_asked(tmp_path: Path) -> None:
    """A sentinel that is gone is a warning, while another one knows the primary."""
    with redis_running(tmp_path) as primary, sentinel_running(tmp_path, "shop", primary) as sentinel:
        store = f"redis+sentinel://{HOST}:{sentinel.port},{HOST}:1/shop/0"
        findings = examined(Files(tmp_path).rules(SITE, store=store, **PATIENT))
        known, gone = of("sentinel", findings)
        assert known.data["primary"] == f"{HOST}:{primary.port}"
        assert (gone.level, "does not reply" in gone.text) == ("warning", True)
        assert of("server", findings)[0].subject == f"server {HOST}:{primary.port}"


def test_the_client_of_an_application_is_used(
    tmp_path: Path, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --app, the store is that of the application, and the command names settings files that it does not read."""
    code = f"""
        import redis
        from ratelimit_mw import Limiter, Rule
        from ratelimit_mw.stores import RedisStore
        from ratelimit_mw.wsgi import RateLimitMiddleware
        client = redis.Redis(host="{HOST}", port={redis_server.port})
        limiter = Limiter([Rule(name="site", limits="5/minute")], RedisStore(client=client, timeout_us=10_000_000))
        app = RateLimitMiddleware(lambda environ, start: start("200 OK", []) or [], limiter=limiter)
    """
    (tmp_path / "doctored_shop.py").write_text(textwrap.dedent(code))
    Files(tmp_path).settings("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    findings = examined("--app", "doctored_shop:app")
    sys.modules.pop("doctored_shop").client.connection_pool.disconnect()
    assert "ratelimit.toml in this folder is not read by the application" in [each.text for each in findings]
    assert of("store", findings)[0].text == f"redis://{HOST}:{redis_server.port}/0 replies"
    assert of("server redis://", findings)[0].data["role"] == "master"


def test_the_settings_file_of_an_application_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be another one than the file that you edit."""
    code = """
        from ratelimit_mw.wsgi import RateLimitMiddleware
        app = RateLimitMiddleware(lambda environ, start: [], settings="own.toml", headers=[])
    """
    (tmp_path / "examined_shop.py").write_text(textwrap.dedent(code))
    Files(tmp_path).settings("reset = 'epoch'", "own.toml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    findings = examined("--app", "examined_shop:app")
    assert of("settings", findings)[0].text == f"read from {tmp_path / 'own.toml'}"
    assert of("headers", findings)[0].text == "only retry-after, reset as epoch"


def test_each_memcached_is_examined(tmp_path: Path, memcached_server: Server) -> None:
    """One of two servers is away: its keys belong to no other server."""
    store = f"memcached://{HOST}:{memcached_server.port}"
    assert of("server", examined(Files(tmp_path).rules(SITE, store=store, **PATIENT)))[0].data["evicted"] == 0
    findings = examined(Files(tmp_path).rules(SITE, store=f"{store},{HOST}:1", **PATIENT), exit_code=1)
    known, gone = of("server", findings)
    assert (known.level, gone.level) == ("ok", "problem")
    stats = {"evictions": "5", "time": "1000", "listen_disabled_num": "1"}
    found = list(examine_memcached(Facts("memcached", "a:1", stats)))
    assert [each.level for each in found] == ["ok", "problem", "warning", "warning"]
    assert all(each.fix for each in found[1:])


def test_the_files_of_an_lmdb_are_examined(tmp_path: Path) -> None:
    """Size, free disk and readers. A path that does not exist stays so."""
    file = Files(tmp_path).rules(SITE, store=f"lmdb://{tmp_path}/db?size=8MiB", **PATIENT)
    assert "does not exist. Check the path" in of("store", examined(file, exit_code=1))[0].text
    assert not (tmp_path / "db").exists()
    limiter = Limiter.from_settings(file)
    limiter.hit({"ip": "192.0.2.7"})
    findings = examined(file)
    assert of("room", findings)[0].data["size"] == 8 << 20
    assert of("readers", findings)[0].data["readers"] >= 1
    assert of("files", findings)[0].data["file"] > 0
    (tmp_path / "db" / "data.mdb.unclean").touch()
    assert "the machine stopped without a shutdown" in of("files", examined(file))[1].text
    limiter.close()


@pytest.mark.parametrize(("share", "effect"), [(0.5, None), (0.8, "share counts"), (0.9, "are rejected")])
def test_a_full_lmdb_is_a_problem(share: float, effect: str | None) -> None:
    room = {"used": int(4096_000 * share), "size": 4096_000, "entries": 7, "readers": 1, "max_readers": 126}
    folder = {"file_system": "ext4", "set_aside": "", "free": 1 << 40, "file": 4096, "allocated": 4096}
    finding, *others = examine_lmdb(Facts("lmdb", "/limits", {**room, **folder}))
    assert finding.level == ("ok" if effect is None else "problem")
    assert (effect or "") in finding.text
    assert [each.level for each in others] == ["ok", "ok"]
    findings = examine_lmdb(Facts("lmdb", "/limits", {**room, **folder, "file_system": "nfs4", "free": 0}))
    assert [each.level for each in list(findings)[2:]] == ["warning", "problem"]


def test_several_processes_need_a_shared_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Files(tmp_path).rules(SITE)
    assert of("store", examined(file))[0].level == "warning"
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    assert "4 processes allow up to 4 times each limit" in problems(examined(file, exit_code=1))[0]


def test_a_variable_that_no_settings_read_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RATELIMIT_STORE of the examples is read by a file that names it only."""
    monkeypatch.setenv("RATELIMIT_STORE", "redis://cache:6379/0")
    [problem] = problems(examined(Files(tmp_path).rules(SITE), exit_code=1))
    assert problem.startswith("the environment variable RATELIMIT_STORE is set, but no settings read it")
    assert "cache" not in problem
    monkeypatch.setenv("RATELIMIT_STORE", f"lmdb://{tmp_path}/db")
    findings = examined(Files(tmp_path).rules(SITE, store="${RATELIMIT_STORE}"), exit_code=1)
    assert not of("environment", findings)


def test_proxies_that_are_too_many_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A private network is fine. A server that reads the same header is a warning."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    proxies = ["unix", "10.0.0.0/8", "fd00::/8", "203.0.0.0/8", "2606:4700::/32"]
    found = of("proxies", examined(Files(tmp_path).rules(SITE, trusted_proxies=proxies)))
    assert [each.level for each in found] == ["ok", "warning", "warning"]
    assert "203.0.0.0/8 trusts 16,777,216 public addresses" in found[1].text
    assert "FORWARDED_ALLOW_IPS=*" in found[2].text


def test_a_header_without_a_proxy_is_a_problem(tmp_path: Path) -> None:
    file = Files(tmp_path).rules(SITE, region_header="cf-ipcountry")
    assert problems(examined(file, exit_code=1)) == [
        "region_header needs trusted_proxies. Without them, your application does not start"
    ]


def test_the_problems_of_check_are_problems(tmp_path: Path) -> None:
    rule = {**SITE, "cost": 9}
    assert (
        "site rejects every request: its cost 9 is greater"
        in problems(examined(Files(tmp_path).rules(rule), exit_code=1))[0]
    )
    [_, disabled] = of("settings", examined(Files(tmp_path).rules(SITE, enabled=False)))
    assert (disabled.level, disabled.fix) == ("warning", "set enabled = true")
