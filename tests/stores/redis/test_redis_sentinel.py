"""Sentinel: the store finds the primary, even after a failover, and replicated counts remain."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import redis
from redis_handles import PATIENT, Send, client, hit, limit_of, ways, ways_of
from redis_proxy import proxied
from servers import HOST, Server, free_port, redis_running, replicated, sentinel_running, wait_for

from ratelimit_mw.decision import Decision, Hit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.redis.router import Router
from ratelimit_mw.stores.redis.store import RedisStore

pytestmark = pytest.mark.slow

SERVICE = "mymaster"


class Watched:
    """A primary, its replica, and a sentinel that watches both."""

    def __init__(self, primary: Server, replica: Server, sentinel: Server) -> None:
        self.primary, self.replica, self.sentinel = primary, replica, sentinel

    @property
    def address(self) -> str:
        """The first of the sentinels is not there."""
        return f"redis+sentinel://{HOST}:{free_port()},{HOST}:{self.sentinel.port}/{SERVICE}/0"

    def all_is_well(self) -> bool:
        with client(self.sentinel) as sentinel:
            replicas: Any = sentinel.sentinel_slaves(SERVICE)
            return [replica["master-link-status"] for replica in replicas] == ["ok"]

    def caught_up(self) -> None:
        """Wait until the replica has got all that the primary has written."""
        with client(self.primary) as primary, client(self.replica) as replica:
            wait_for(lambda: replicated(primary, replica), "the replica")


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    quick = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
    with (
        redis_running(tmp_path, *quick) as primary,
        redis_running(tmp_path, *quick, "--replicaof", f"{HOST} {primary.port}") as replica,
        sentinel_running(tmp_path, SERVICE, primary) as sentinel,
    ):
        found = Watched(primary, replica, sentinel)
        wait_for(found.all_is_well, "the sentinel to know the replica")
        yield found


@pytest.fixture
def sends(watched: Watched) -> Iterator[list[Send]]:
    """Both ways to a store that knows only the sentinels, and has found the primary."""
    with ways(watched.address, 500_000) as found:
        for send in found:
            first_answer(send, hit(limit_of("5/hour")))
        yield found


def answered(send: Send, one: Hit) -> Decision | None:
    with suppress(StoreError):
        return send(one)[0]
    return None


def first_answer(send: Send, one: Hit) -> Decision:
    """The answer of the first call that does not fail."""
    found = list[Decision]()
    wait_for(lambda: (answer := answered(send, one)) and not found.append(answer), "the new primary")
    return found[0]


def test_a_killed_primary_is_followed_by_its_replica(watched: Watched, sends: list[Send]) -> None:
    """Calls fail until the failover; then the new primary answers with the replicated counts."""
    one = hit(limit_of("9/hour"))
    assert [send(one)[0].remaining for send in sends] == [8, 7]
    watched.caught_up()
    watched.primary.kill()
    assert [answered(send, one) for send in sends] == [None, None]
    for send in sends:
        assert first_answer(send, one).remaining <= 6
        assert send(one)[0].allowed


def agreed(sentinel: redis.Redis) -> bool:
    """Whether the sentinel starts a failover; it does not while it has not heard of the replica for a moment."""
    try:
        sentinel.execute_command("SENTINEL", "FAILOVER", SERVICE)
    except redis.ResponseError as error:
        if "NOGOODSLAVE" not in str(error):
            raise
        return False
    return True


@pytest.mark.thorough
def test_a_primary_that_steps_down_is_left(watched: Watched, sends: list[Send]) -> None:
    """An old primary that is now a replica does not write: each call searches the primary again, until one answers."""
    one = hit(limit_of("5/hour"))
    assert [send(one)[0].remaining for send in sends] == [4, 3]
    watched.caught_up()
    with client(watched.sentinel) as sentinel, client(watched.primary) as old:
        wait_for(lambda: agreed(sentinel), "the sentinel to see the replica as fit")
        wait_for(lambda: sentinel.sentinel_get_master_addr_by_name(SERVICE)[1] == watched.replica.port, "the failover")
        old.replicaof(HOST, watched.replica.port)  # the sentinel would, some seconds later
    assert [answered(send, one) for send in sends] == [None, None]
    assert [first_answer(send, one).remaining for send in sends] == [2, 1]
    with client(watched.replica) as new:
        assert new.exists("rl:" + one.key)


@pytest.mark.thorough
def test_a_service_that_no_sentinel_knows_is_an_error(watched: Watched) -> None:
    """A misspelt name: ``StoreError`` with the name. Many requests at once ask the sentinels once."""
    store = open_store(f"redis+sentinel://{HOST}:{watched.sentinel.port}/another", PATIENT)

    async def ask() -> list[Any]:
        found = [store.aapply([hit(limit_of("5/hour"))]) for _ in range(50)]
        return [*await asyncio.gather(*found, return_exceptions=True), await store.aclose()]

    with patch.object(Router, "_read_map", autospec=True, side_effect=Router._read_map) as read:
        assert ["another" in str(each) for each in asyncio.run(ask())] == [True] * 50 + [False]
    assert read.call_count == 1
    with pytest.raises(StoreError, match="another"):
        store.apply([hit(limit_of("5/hour"))])


@pytest.mark.thorough
def test_a_silent_sentinel_leaves_time_for_another(watched: Watched, tmp_path: Path) -> None:
    """Whichever of two is asked first: with one of them stopped, new connections are made in time."""
    (folder := tmp_path / "second").mkdir()
    with sentinel_running(folder, SERVICE, watched.primary) as second:
        second.pause()
        address = f"redis+sentinel://{HOST}:{second.port},{HOST}:{watched.sentinel.port}/{SERVICE}"
        for _ in range(4):  # the turns go round
            with ways(address, 3_000_000) as sends:
                assert [send(hit(limit_of("5/hour")))[0].remaining for send in sends] == [4, 4]
        second.resume()


@pytest.mark.thorough
def test_a_sentinel_that_misleads_is_not_asked_for_ever(watched: Watched, tmp_path: Path) -> None:
    """One that still names a server that has stepped down: the next connection asks another one."""
    (folder := tmp_path / "second").mkdir()
    with sentinel_running(folder, "other", watched.replica) as alone, client(alone) as misled:
        misled.execute_command("SENTINEL", "MONITOR", SERVICE, HOST, watched.replica.port, 1)  # a replica: READONLY
        misled.execute_command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", 60_000)
        address = f"redis+sentinel://{HOST}:{alone.port},{HOST}:{watched.sentinel.port}/{SERVICE}"
        with ways(address, 3_000_000) as sends:
            for send in sends:
                assert [answered(send, hit(limit_of("50/hour"))) is not None for _ in range(6)][2:] == [True] * 4


@pytest.mark.thorough
def test_the_primary_of_sentinel_is_remapped(tmp_path: Path) -> None:
    """Blocking and on a loop, the calls go to the proxy."""
    with ExitStack() as stack:
        primary = stack.enter_context(redis_running(tmp_path))
        sentinel = stack.enter_context(sentinel_running(tmp_path, "mymaster", primary))
        proxy = stack.enter_context(proxied(primary.port))
        limit, url = limit_of("9/hour"), f"redis+sentinel://{HOST}:{sentinel.port}/mymaster"
        places = {(HOST, primary.port): (HOST, proxy.port)}
        store = stack.enter_context(closing(RedisStore(url, remap=places.__getitem__, timeout_us=PATIENT)))
        assert [send(hit(limit))[0].remaining for send in ways_of(store).values()] == [8, 7]
        assert proxy.count(hit(limit).key) >= 2
