"""Overrides of single clients: what they change, when they end, and how other workers apply them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from limiter_ways import WAYS, Blocking
from override_stores import ACME, API, OTHER, Recording, learns, limiter_of, limits, set_elsewhere
from servers import HOST, Server
from shared_store import SharedStore

from ratelimit_mw import ConfigError, Limiter, Rule, StoreError, load_settings
from ratelimit_mw.limiter import override_record
from ratelimit_mw.rules.decorators import limit
from ratelimit_mw.rules.marks import marks_of
from ratelimit_mw.rules.overrides import ClientOverride, dump_overrides, load_overrides
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import ManualClock

SECRET = "correct horse battery staple"


@pytest.fixture(params=["lmdb", "redis", "memcached"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of its own that processes share."""
    if request.param == "lmdb":
        return f"lmdb://{tmp_path}/state"
    server: Server = request.getfixturevalue(f"{request.param}_server")
    end = "/0" if request.param == "redis" else ""
    return f"{request.param}://{HOST}:{server.port}{end}?prefix=o{uuid4().hex}:"


@pytest.fixture
def workers(url: str) -> Iterator[tuple[Limiter, Limiter]]:
    """Two limiters, each with its own connection to one store, as in two processes."""
    both = limiter_of(store=url), limiter_of(store=url)
    yield both
    for each in both:
        each.close()


@pytest.mark.parametrize("way", WAYS)
def test_an_override_changes_the_limits_of_one_client(way: type[Blocking]) -> None:
    limiter = limiter_of()
    for _ in range(3):
        limiter.hit(ACME)
    override = way(limiter).set_override("api", ACME, "1000/minute; 20000/day")
    assert override == ClientOverride("api", "{user=acme}", "1000/minute; 20000/day")
    assert way(limiter).overrides() == [override]
    assert (override.client, override.until) == ("user=acme", None)
    assert [(d.limit, d.remaining) for d in limiter.peek(ACME, cost=0).decisions] == [(1000, 997), (20_000, 20_000)]
    assert limits(limiter, OTHER) == ["100/minute"]
    assert way(limiter).remove_override("api", ACME)
    assert limits(limiter) == ["100/minute"]
    assert not way(limiter).remove_override("api", ACME)
    assert way(limiter).overrides() == []


def test_an_override_ends_to_the_microsecond() -> None:
    """No store is read: each worker knows the end."""
    clock = ManualClock(1_000_000.0)
    limiter = limiter_of(clock=clock)
    assert limiter.set_override("api", ACME, "7/minute", duration="1m").until == 1_000_060.0
    clock.advance(59.999999)
    assert limits(limiter) == ["7/minute"]
    assert [each.limits for each in limiter.overrides()] == ["7/minute"]
    clock.advance(0.000001)
    assert limits(limiter) == ["100/minute"]
    assert limiter.overrides() == []
    limiter.set_override("api", OTHER, "5/minute")
    assert [each.client for each in load_overrides(limiter.store.read_record("overrides"))] == ["user=other"]


def test_unlimited_frees_a_client_from_all_limits_of_the_rule() -> None:
    """Other rules continue. A rule in shadow mode, and one with a function, agree."""
    shadow = Rule(name="new", key=["user"], limits="1/minute", mode="shadow")
    plan = Rule(name="plan", key=["user"], limits=lambda user: "2/minute")
    limiter = limiter_of(API, shadow, plan)
    for name in ("api", "new", "plan"):
        limiter.set_override(name, ACME, "unlimited")
        assert name not in limiter.hit(ACME)
        assert name in limiter.hit(OTHER)
    assert limiter.hit(ACME).allowed
    assert limiter.inspect("api", ACME).decisions == []


def test_an_override_precedes_tables_and_functions() -> None:
    def asked(user: str) -> str:
        calls.append(user)
        return "3/minute"

    calls: list[str] = []
    by_table = Rule(name="table", key=["user"], limits="1/minute", per_key={"acme": "2/minute"})
    by_plan = Rule(name="plan", key=["user"], limits="1/minute", per={"plan": {"pro": "2/minute"}})
    by_function = Rule(name="function", key=["user"], limits=asked)
    features = {**ACME, "plan": "pro"}
    limiter = limiter_of(by_table, by_plan, by_function)
    assert limits(limiter, features) == ["2/minute", "2/minute", "3/minute"]
    for name in ("table", "plan", "function"):
        limiter.set_override(name, ACME, "9/minute")
    calls.clear()
    assert limits(limiter, features) == ["9/minute"] * 3
    assert calls == []
    assert limits(limiter, OTHER) == ["1/minute", "1/minute", "3/minute"]


def test_the_client_is_spelled_as_requests_spell_it() -> None:
    """Comparison form, networks, several parts, attributes, braces and a key for all clients."""
    keys: list[tuple[list[str], dict[str, Any], dict[str, Any]]] = [
        (["user"], {"user": " ÄCME "}, {"user": "äcme"}),
        (["email"], {"email": "Ann.B@Example.com "}, {"email": "ann.b@example.com"}),
        (["ip/24/48"], {"ip": "192.0.2.7"}, {"ip": "192.0.2.99"}),
        (["endpoint", "user|ip"], {"endpoint": "/a", "ip": "192.0.2.7"}, {"endpoint": "/a", "ip": "192.0.2.7"}),
        (["user.id"], {"user": {"id": 7}}, {"user": {"id": 7}}),
        (["path:id as int"], {"path:id": "007"}, {"path:id": "7"}),
        (["header:x-api-key"], {"header:x-api-key": "{a}%\ud800"}, {"header:x-api-key": "{a}%\ud800"}),
        (["user"], {"user": "x" * 500}, {"user": "X" * 500}),
        ([], {}, {"user": "anybody"}),
    ]
    for key, given, request in keys:
        limiter = limiter_of(Rule(name="api", key=key, limits="100/minute"))
        limiter.set_override("api", given, "7/minute")
        assert limits(limiter, request) == ["7/minute"], key
        assert limiter.remove_override("api", request)


def test_a_secret_keeps_personal_data_out_of_the_record() -> None:
    secret = load_settings({"secret": SECRET}).secret
    limiter = limiter_of(secret=secret)
    override = limiter.set_override("api", ACME, "7/minute")
    assert limits(limiter) == ["7/minute"]
    assert b"acme" not in (limiter.store.read_record("overrides") or b"")
    assert override.key.startswith("{user#")
    assert limiter.remove_override("api", {"user": "Acme"})


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"rule": "apj"}, "unknown rule 'apj'. Did you mean 'api'"),
    ({"features": {}}, "the key of rule 'api' needs user"),
    ({"features": {"ip": "192.0.2.7"}}, "rule 'api' does not use ip. Its key is: user"),
    ({"limits": "5/minut"}, "limits: cannot parse quota '5/minut'"),
    ({"limits": "1/minute; 2/minute"}, "limits: two limits have the period"),
    ({"limits": "2/minute", "rule": "dear"}, "limits: the cost 3 of the rule is above the limit 2/minute"),
    ({"limits": ""}, "limits: "),
    ({"duration": 0}, "duration: expected more than 0"),
    ({"duration": "600000w"}, "duration: expected a duration of at most 366 days; got '600000w'"),
    ({"duration": "7 moons"}, "duration: expected a duration such as"),
    ({"rule": "number", "features": {"path:id": "x"}}, "path:id as int of rule 'number' cannot have this value"),
]


@pytest.mark.parametrize(("changed", "message"), MISTAKES, ids=[message[:40] for _, message in MISTAKES])
def test_a_mistake_is_named_and_changes_nothing(changed: dict[str, Any], message: str) -> None:
    dear = Rule(name="dear", key=["user"], limits="9/minute", cost=3)
    number = Rule(name="number", key=["path:id as int"], limits="9/minute")
    limiter = limiter_of(API, dear, number)
    with pytest.raises(ConfigError, match=message):
        limiter.set_override(**{"rule": "api", "features": ACME, "limits": "5/minute", **changed})
    assert limiter.overrides() == []


class AwaitedAlone(Blocking):
    """A limiter through its async methods, whose event loops leave no connection open."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*args: Any) -> Any:
            try:
                return await getattr(self.rate, f"a{name}")(*args)
            finally:
                await self.rate.store.aclose()

        return lambda *args: asyncio.run(call(*args))


@pytest.mark.parametrize("way", [Blocking, AwaitedAlone])
def test_another_worker_learns_of_a_change(workers: tuple[Limiter, Limiter], way: type[Blocking]) -> None:
    first, second = workers
    assert limits(second) == ["100/minute"]
    way(first).set_override("api", ACME, "7/minute")
    assert limits(first) == ["7/minute"]
    learns(second, ["7/minute"])
    way(second).set_override("api", OTHER, "unlimited")
    learns(first, [], OTHER)
    assert [(each.client, each.limits) for each in way(first).overrides()] == [
        ("user=acme", "7/minute"),
        ("user=other", "unlimited"),
    ]
    way(first).clear_overrides()
    assert limits(first) == ["100/minute"]
    learns(second, ["100/minute"])


async def astart(limiter: Limiter) -> None:
    await limiter.astart()
    await limiter.store.aclose()


@pytest.mark.parametrize("start", [Limiter.start, lambda limiter: asyncio.run(astart(limiter))])
def test_a_worker_that_starts_knows_the_overrides(url: str, start: Callable[[Limiter], None]) -> None:
    """As an ASGI application does at its start: the first request has them."""
    first, second = limiter_of(store=url), limiter_of(store=url, reload_interval=0)
    first.set_override("api", ACME, "7/minute")
    start(second)
    assert limits(second) == ["7/minute"]
    first.remove_override("api", ACME)
    assert limits(second) == ["7/minute"]  # it never looks again
    first.close()
    second.close()


def test_the_first_request_knows_the_overrides(url: str) -> None:
    """A WSGI application is never started. Its first request reads the overrides, as it opens the store."""
    first, second = limiter_of(store=url), limiter_of(store=url)
    first.set_override("api", ACME, "7/minute")
    assert second.hit(ACME).decisions[0].limit == 7
    first.close()
    second.close()


def test_two_workers_change_the_overrides_at_once(workers: tuple[Limiter, Limiter]) -> None:
    """No change is lost."""

    def change(limiter: Limiter, name: str) -> None:
        for number in range(10):
            limiter.set_override("api", {"user": f"{name}{number}"}, "7/minute")

    threads = [threading.Thread(target=change, args=pair) for pair in zip(workers, "ab", strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {each.client for each in workers[0].overrides()} == {f"user={n}{i}" for n in "ab" for i in range(10)}


@pytest.mark.parametrize("way", WAYS)
def test_the_first_override_of_two_processes_is_not_taken_for_an_evicted_record(way: type[Blocking]) -> None:
    """The other process writes between the read of the record and that of its head."""
    store = Recording()
    limiter, read = limiter_of(store=store), store.states.read_record

    def race(name: str) -> bytes | None:
        data = read(name)
        if store.wholes == 1:
            store.states.read_record = read  # type: ignore[method-assign]
            set_elsewhere(store, "7/minute")
        return data

    store.states.read_record = race  # type: ignore[method-assign]
    way(limiter).set_override("api", OTHER, "8/minute")
    assert [each.client for each in way(limiter).overrides()] == ["user=acme", "user=other"]


def test_limiters_with_one_store_object_learn_at_once() -> None:
    store = MemoryStore()
    first, second = limiter_of(store=store), limiter_of(store=store)
    first.set_override("api", ACME, "7/minute")
    assert limits(second) == ["7/minute"]
    assert limits(limiter_of(store=store)) == ["7/minute"]
    assert limits(limiter_of()) == ["100/minute"]


def test_a_reload_and_decorators_keep_overrides(tmp_path: Path) -> None:
    file = tmp_path / "ratelimit.toml"
    text = 'key = ["user"]\nlimits = "100/minute"\n'
    file.write_text(f'[[rules]]\nname = "api"\n{text}')
    limiter = Limiter.from_settings(str(file))
    limiter.set_override("api", ACME, "7/minute")
    mark = limit("1/minute", key=["user"], name="login")(lambda: None)
    limiter.adopt(marks_of(mark).marks)
    limiter.set_override("login", ACME, "8/minute")
    found = limiter.rules.by_name["login"].limits_for(ACME)
    assert [str(each.quota) for each in found] == ["8/minute"]
    file.write_text(f'[[rules]]\nname = "api"\n{text}mode = "shadow"\n[[rules]]\nname = "more"\n{text}')
    limiter.reload()
    assert limits(limiter) == ["7/minute", "100/minute"]
    assert limiter.rules.by_name["login"].overrides is not None


def test_limits_of_clients_that_stay_the_same_are_the_same_objects() -> None:
    """So leases and cached rejections of all other clients survive a change."""
    limiter = limiter_of()
    limiter.set_override("api", ACME, "7/minute")
    before = limiter.rules.by_name["api"].limits_for(ACME)
    limiter.set_override("api", OTHER, "8/minute")
    assert limiter.rules.by_name["api"].limits_for(ACME) is before
    limiter.clear_overrides()
    assert limiter.rules.by_name["api"].overrides is None


def test_a_rule_that_has_changed_leaves_out_what_it_cannot_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, without the client. An override of a rule of another application is not logged."""
    file = tmp_path / "ratelimit.toml"
    file.write_text('[[rules]]\nname = "api"\nkey = ["user"]\nlimits = "100/minute"\n')
    limiter = Limiter.from_settings(str(file))
    limiter.set_override("api", ACME, "7/minute")
    for _ in range(2):
        file.write_text(file.read_text() + "cost = 9\n" * ("cost" not in file.read_text()))
        limiter.reload()
    assert limits(limiter) == ["100/minute"]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == (
        "rule 'api': overrides of clients are not active: the cost 9 of the rule is above the limit 7/minute"
    )
    file.write_text(file.read_text().replace('"api"', '"other"'))
    limiter.reload()
    assert len(caplog.records) == 1


def test_a_store_without_records_is_not_asked() -> None:
    limiter = limiter_of(store=SharedStore())
    assert limiter.watch is None
    with pytest.raises(ConfigError, match="keeps no records"):
        limiter.set_override("api", ACME, "7/minute")


@pytest.mark.parametrize("way", [Blocking, AwaitedAlone])
def test_a_key_of_another_type_is_named_and_can_be_cleared(redis_server: Server, way: type[Blocking]) -> None:
    prefix = f"t{uuid4().hex}:"
    limiter = limiter_of(store=f"redis://{HOST}:{redis_server.port}/0?prefix={prefix}")
    with redis.Redis(HOST, redis_server.port) as client:
        for name in ("overrides", "overrides.head"):
            client.delete(f"{prefix}record|{name}")
            client.lpush(f"{prefix}record|{name}", "x")
            with pytest.raises(
                StoreError, match=rf"the key 'record\|{name}' does not hold a record.*clear_overrides\(\)"
            ):
                way(limiter).set_override("api", ACME, "7/minute")
            way(limiter).clear_overrides()
            way(limiter).set_override("api", ACME, "8/minute")
            assert limits(limiter) == ["8/minute"]
    limiter.close()


def test_a_change_that_always_loses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = limiter_of()
    monkeypatch.setattr(limiter.store, "write_record", lambda *_: False)
    with pytest.raises(StoreError, match="other processes changed the overrides all the time"):
        limiter.set_override("api", ACME, "7/minute")


def test_too_many_overrides_are_an_error_that_names_the_alternative() -> None:
    limiter = limiter_of()
    many = [ClientOverride("api", f"{{user={i:060}}}", "7/minute") for i in range(20_000)]
    one, two = len(dump_overrides(many[:1])), len(dump_overrides(many[:2]))
    most = 1 + (1_000_000 - one) // (two - one)
    assert limiter.store.write_record("overrides", dump_overrides(many[:most]), None)
    with pytest.raises(
        ConfigError, match=rf"^{most:,} overrides fill their record\. Put the limits of many clients into"
    ):
        limiter.set_override("api", {"user": "x" * 64}, "7/minute")


def test_inspect_and_reset_follow_an_override() -> None:
    limiter = limiter_of(Rule(name="api", key=["user"], limits="2/minute", algorithm="fixed-window"))
    limiter.hit(ACME)
    limiter.set_override("api", ACME, "9/minute; 50/hour")
    limiter.hit(ACME)
    limiter.hit(OTHER)
    listed = {(d.client, str(d.source.quota)): d.remaining for d in limiter.inspect("api").decisions}
    assert listed == {("user=acme", "9/minute"): 7, ("user=acme", "50/hour"): 49, ("user=other", "2/minute"): 1}
    limiter.reset("api", ACME)
    assert [d.remaining for d in limiter.peek(ACME, cost=0).decisions] == [9, 50]


def test_a_client_with_an_override_can_be_banned() -> None:
    """The ban of a rule stays, unless the client has no limits of the rule."""
    ban = {"after": 2, "within": "10m", "for": "1h"}
    limiter = limiter_of(Rule(name="api", key=["user"], limits="5/minute", ban=ban))
    limiter.set_override("api", ACME, "1/minute")
    outcomes = [limiter.hit(ACME).allowed for _ in range(3)]
    assert outcomes == [True, False, False]
    assert (limiter.hit(ACME).retry_after or 0) > 3_000
    assert {decision.client for decision in limiter.inspect("api", rejected=True).decisions} == {"user=acme"}
    limiter.set_override("api", ACME, "unlimited")
    assert limiter.hit(ACME).allowed
    assert limiter.inspect("api").decisions == []


def test_an_override_may_have_slots() -> None:
    """A plan is built anew, so that slots are returned."""
    limiter = limiter_of()
    limiter.set_override("api", ACME, "1 concurrent")
    with limiter.slot(ACME):
        assert not limiter.hit(ACME).allowed
    assert limiter.hit(ACME).allowed


def test_a_rejected_client_is_allowed_at_once(url: str) -> None:
    """The rejection cache knows the earlier limit."""
    limiter = Limiter([Rule(name="api", key=["user"], limits="30/minute")], url, settings=Settings())
    while limiter.hit(ACME).allowed:
        pass
    limiter.set_override("api", ACME, "1000/minute")
    assert limiter.hit(ACME).allowed
    limiter.close()


def test_two_processes_agree_on_the_record() -> None:
    """The form is fixed, because workers of the last version may read it."""
    override = ClientOverride("api", "{user=acme\ud800}", "7/minute", 5)
    lasting = ClientOverride("a", "", "unlimited")
    data = dump_overrides([override, lasting])
    assert data.partition(b"\n")[2] == (
        b'[{"rule":"api","key":"{user=acme\\ud800}","limits":"7/minute","until_us":5},'
        b'{"rule":"a","key":"","limits":"unlimited"}]'
    )
    assert load_overrides(data) == (override, lasting)
    assert override_record.RECORD == "overrides"


def test_a_record_of_another_version_is_not_taken() -> None:
    """A later version may have more fields. Its record is not damaged, but this version cannot read it."""
    body = b'[{"rule":"api","key":"{user=acme}","limits":"7/minute","note":"x"}]'
    head = dump_overrides([]).partition(b" 1 ")[0] + b" 1 " + blake2b(body, digest_size=16).hexdigest().encode()
    with pytest.raises(ValueError, match="damaged, or of another version"):
        load_overrides(head + b"\n" + body)


def test_the_log_of_a_change_has_no_client(caplog: pytest.LogCaptureFixture) -> None:
    limiter = limiter_of()
    with caplog.at_level(logging.DEBUG):
        limiter.set_override("api", ACME, "7/minute")
        limiter.remove_override("api", ACME)
    assert "acme" not in caplog.text
