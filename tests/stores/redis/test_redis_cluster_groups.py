"""Requests whose limits are in several slots of a cluster: few messages, all at once, and all limits or none."""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from own_time import hurried
from redis.crc import key_slot
from redis_handles import NOW, PATIENT, calls, client, hit, limit_of
from redis_topology import port_at
from servers import HOST, Server, wait_for

from ratelimit_mw import Limiter, Rule, Verdict
from ratelimit_mw.decision import Limit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.limiter.followers.record import RecordFollower
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.redis.call import CORRECT
from ratelimit_mw.stores.redis.errors import NotRunError
from ratelimit_mw.stores.redis.router import Router
from ratelimit_mw.stores.redis.store import RedisStore
from ratelimit_mw.stores.wire import BlockingChannel, BlockingConnection, LoopConnection

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_reads")]

WHO = {"ip": "192.0.2.7", "user": "ann", "endpoint": "/login"}
THREE: dict[str, list[str]] = {"address": ["ip"], "account": ["user"], "login": ["endpoint", "ip"]}


@pytest.fixture(autouse=True)
def no_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread of a limiter reads the overrides in the store, so a test can count the commands of its requests."""
    monkeypatch.setattr(RecordFollower, "due_at", math.inf)


@pytest.fixture
def servers(nodes: list[Server]) -> Iterator[list[redis.Redis]]:
    """The primaries, without keys."""
    with ExitStack() as stack:
        found = [stack.enter_context(client(node)) for node in nodes[:3]]
        for each in found:
            each.flushall()
        yield found


@pytest.fixture
def opened_cluster(nodes: list[Server]) -> Iterator[Callable[..., RedisStore]]:
    """Opens stores on the cluster, and closes them."""
    with ExitStack() as stack:

        def build(timeout_us: int = PATIENT) -> RedisStore:
            store = open_store(f"redis+cluster://{HOST}:{nodes[0].port}", timeout_us)
            assert isinstance(store, RedisStore)
            stack.callback(store.close)
            return store

        yield build


class Scene:
    """A limiter on the cluster, with the commands of each request and its rounds."""

    def __init__(self, store: RedisStore, servers: Sequence[redis.Redis], is_async: bool, rules: Any) -> None:
        self.store = store
        settings = Settings(rejection_cache=0, fleet_size=1)
        self.limiter = Limiter([Rule(name=name, **rule) for name, rule in rules.items()], store, settings=settings)
        self.limiter.reloads.watch = None  # no reads of overrides between the requests
        self.servers = servers
        self._runner = asyncio.Runner() if is_async else None

    def ask(self) -> Verdict:
        return self._runner.run(self.limiter.ahit(WHO)) if self._runner else self.limiter.hit(WHO)

    def peek(self) -> list[int]:
        verdict = self._runner.run(self.limiter.apeek(WHO, cost=0)) if self._runner else self.limiter.peek(WHO, cost=0)
        return [decision.remaining for decision in verdict.decisions]

    def commands(self, verdict: bool) -> int:
        """Return the number of commands of one request."""
        for server in self.servers:
            server.config_resetstat()
        assert bool(self.ask()) is verdict
        return sum(calls(server).get("evalsha", 0) for server in self.servers)

    def close(self) -> None:
        if self._runner:
            self._runner.run(self.limiter.aclose())
            self._runner.close()
        self.limiter.close()


@pytest.fixture(params=[False, True], ids=["blocking", "async"])
def scene(
    opened_cluster: Callable[..., RedisStore], servers: list[redis.Redis], request: pytest.FixtureRequest
) -> Iterator[Callable[..., Scene]]:
    opened: list[Scene] = []

    def build(**rules: Any) -> Scene:
        opened.append(Scene(opened_cluster(), servers, request.param, rules))
        for _ in range(2):
            opened[-1].ask()  # connects, and each server learns the script
        return opened[-1]

    yield build
    for each in opened:
        each.close()


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of messages of each round: what goes out before the first reply is read."""
    found: list[int] = []
    is_sending = [False]

    def sending(original: Any) -> Any:
        def send(self: Any, frame: bytes, sent: Any, *rest: Any) -> Any:
            if not is_sending[0]:
                found.append(0)
            is_sending[0] = True
            found[-1] += getattr(sent, "expected", sent)
            return original(self, frame, sent, *rest)

        return send

    def receiving(original: Any) -> Any:
        def receive(self: Any, *rest: Any) -> Any:
            is_sending[0] = False
            return original(self, *rest)

        return receive

    monkeypatch.setattr(BlockingChannel, "send", sending(BlockingChannel.send))
    monkeypatch.setattr(BlockingConnection, "receive", receiving(BlockingConnection.receive))
    monkeypatch.setattr(LoopConnection, "post", sending(LoopConnection.post))
    monkeypatch.setattr(LoopConnection, "data_received", receiving(LoopConnection.data_received))
    return found


def test_two_windows_of_a_client_are_one_command(scene: Callable[..., Scene]) -> None:
    """Allowed and rejected: the hash tag keeps both keys in one slot."""
    one = scene(api={"limits": "3/minute; 20/hour"})
    assert [one.commands(True), one.commands(False)] == [1, 1]
    assert one.peek() == [0, 17]


def test_three_rules_are_one_round_trip(scene: Callable[..., Scene], rounds: list[int]) -> None:
    """By IP address, by user, and by endpoint and IP address: two slots, asked at once."""
    one = scene(**{name: {"limits": "9/hour", "key": key} for name, key in THREE.items()})
    rounds.clear()
    assert one.commands(True) == 2
    assert rounds == [2]


def test_a_rejection_is_two_round_trips(scene: Callable[..., Scene], rounds: list[int]) -> None:
    """The second one refunds and looks, in one message for each slot. All limits are as before."""
    limits = {"address": "9/hour", "account": "3/hour", "login": "9/hour"}
    one = scene(**{name: {"limits": limits[name], "key": key} for name, key in THREE.items()})
    assert one.ask()
    before = one.peek()
    rounds.clear()
    assert one.commands(False) == 3
    assert rounds == [2, 1]
    verdict = one.ask()
    assert [(d.rule, d.allowed, d.remaining) for d in verdict.decisions] == [
        ("address", True, 6),
        ("account", False, 0),
        ("login", True, 6),
    ]
    assert one.peek() == before == [6, 0, 6]
    assert one.store.lost_refunds == 0


def test_requests_of_one_loop_share_calls_by_server(nodes: list[Server], servers: list[redis.Redis]) -> None:
    """Of 300 requests with three limits at once, exactly those pass that the tightest limit allows."""
    rules = [
        Rule(name=name, limits="50/hour" if name == "login" else "999/hour", key=key) for name, key in THREE.items()
    ]

    async def run() -> tuple[int, list[int]]:
        store = open_store(f"redis+cluster://{HOST}:{nodes[0].port}", PATIENT)
        limiter = Limiter(rules, store, settings=Settings(rejection_cache=0, fleet_size=1))
        passed = sum(map(bool, await asyncio.gather(*(limiter.ahit(WHO) for _ in range(300)))))
        while passed < 50 and await limiter.ahit(WHO):  # others may have been rejected before a refund
            passed += 1
        left = [decision.remaining for decision in (await limiter.apeek(WHO, cost=0)).decisions]
        await limiter.aclose()
        return passed, left

    assert asyncio.run(run()) == (50, [949, 949, 0])


@pytest.fixture
def apart(nodes: list[Server], servers: list[redis.Redis]) -> tuple[Limit, Limit, Server]:
    """Return two limits on two servers, and the server of the second one."""

    def port(limit: Limit) -> int:
        return port_at(servers[0], key_slot(b"rl:" + hit(limit).key.encode()))

    first = limit_of("9/hour")
    second = next(limit for limit in iter(lambda: limit_of("9/hour"), None) if port(limit) != port(first))
    return first, second, next(node for node in nodes if node.port == port(second))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_silent_server_has_the_others_refunded(
    apart: tuple[Limit, Limit, Server], opened_cluster: Callable[..., RedisStore], is_async: bool
) -> None:
    """The request fails in its time budget, and the other limit is as before. The unknown refund is counted."""
    first, second, server = apart
    store = opened_cluster(2_000_000)
    hits = [hit(first), hit(second)]
    with asyncio.Runner() as runner:
        apply = (lambda hits: runner.run(store.aapply(hits))) if is_async else store.apply
        apply(hits)
        server.pause()
        try:
            with hurried(store, 0.2), pytest.raises(StoreError, match="time budget"):
                apply(hits)
        finally:
            server.resume()
        wait_for(lambda: apply([hit(first, cost=0)])[0].remaining == 8, "the refund, which can be late")
        assert store.lost_refunds >= 1  # the reply to the other refund can be late, too
        assert apply(hits)[0].remaining == 7
        runner.run(store.aclose())


@pytest.mark.parametrize(("problem", "lost"), [(OSError("cut"), 1), (NotRunError("no connection"), 0)])
def test_a_refund_that_fails_is_counted_or_made_later(
    apart: tuple[Limit, Limit, Server],
    opened_cluster: Callable[..., RedisStore],
    monkeypatch: pytest.MonkeyPatch,
    problem: Exception,
    lost: int,
) -> None:
    """A rejection stands, whatever happens to the refunds of the other limits. A thread sends those not sent."""
    first, second, _ = apart
    store = opened_cluster()
    ask, failures = Router.ask_each, [problem, problem]

    async def failing(self: Router, messages: Any, deadline: float) -> None:
        if failures and any(each.kind == CORRECT for each in messages):
            problem = failures.pop()
            for each in messages:
                each.fail(problem)
        else:
            await ask(self, messages, deadline)

    monkeypatch.setattr(Router, "ask_each", failing)
    decisions = store.apply([hit(first), hit(second, cost=10)], NOW)
    assert [(d.allowed, d.remaining) for d in decisions] == [(True, 8), (False, 9)]
    assert store.lost_refunds == lost
    wait_for(lambda: lost or store.apply([hit(first, cost=0)], NOW)[0].remaining == 9, "the refund")


@pytest.mark.parametrize(("problem", "cost"), [("CLUSTERDOWN for a reason", 1), ("ERR for a reason", 0)])
def test_a_server_that_has_counted_nothing_loses_no_refund(
    apart: tuple[Limit, Limit, Server],
    opened_cluster: Callable[..., RedisStore],
    monkeypatch: pytest.MonkeyPatch,
    problem: str,
    cost: int,
) -> None:
    """The request fails, and the other limit is as before."""
    first, second, _ = apart
    store = opened_cluster()
    ask = Router.ask_each

    async def failing(self: Router, messages: Any, deadline: float) -> None:
        await ask(self, messages[:1], deadline)
        for each in messages[1:]:
            each.fail(redis.ResponseError(problem))

    monkeypatch.setattr(Router, "ask_each", failing)
    with pytest.raises(StoreError, match=problem):
        store.apply([hit(first), hit(second, cost=cost)], NOW)
    assert store.apply([hit(first, cost=0)], NOW)[0].remaining == 9
    assert store.lost_refunds == 0
