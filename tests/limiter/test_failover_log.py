"""The log lines and the counts of decisions without the store."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from failover_kit import WHO, limiter, rule
from servers import HOST, redis_running, wait_for
from shared_store import SharedStore
from tables import each

from ratelimit_mw import Limiter
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import RedisStore


def test_failures_among_successes_are_logged_once(way: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The circuit breaker stays closed, so this line is the only hint at decisions without the store."""
    shared = SharedStore()
    mine = limiter(shared, [rule("allow")])
    for _ in range(3):
        shared.down = True
        for _ in range(2):
            way(mine).hit(WHO)
        shared.down = False
        way(mine).hit(WHO)
    (message,) = caplog.messages
    assert message.startswith("store SharedStore: some calls fail (it does not answer) and others succeed; on_store")
    mine.close()


@pytest.mark.slow
def test_a_server_without_a_free_connection_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another client takes the last connection. The line has the reason that Redis gives."""
    with redis_running(tmp_path, "--maxclients", "2") as server, redis.Redis(host=HOST, port=server.port) as other:
        mine = limiter(RedisStore(f"redis://{HOST}:{server.port}", timeout_us=5_000_000), [rule("deny")])
        wait_for(lambda: len(other.client_list()) == 1, "the start to be over")
        assert not mine.hit(WHO).unavailable
        for client in other.client_list():
            if int(client["id"]) != other.client_id():
                other.client_kill(client["addr"])
        with socket.create_connection((HOST, server.port)) as third:
            third.sendall(b"PING\r\n")
            assert third.recv(7) == b"+PONG\r\n"
            assert mine.hit(WHO).unavailable
        wait_for(lambda: len(other.client_list()) == 1, "the end of the third connection")
        assert not mine.hit(WHO).unavailable
        (message,) = [record.getMessage() for record in caplog.records]
        mine.close()
    assert "some calls fail (" in message
    assert "max number of clients reached) and others succeed" in message


def test_a_correction_that_succeeds_ends_the_failures(caplog: pytest.LogCaptureFixture, shared: SharedStore) -> None:
    """A refund that succeeds after a failed call has the same line in the log."""
    mine = limiter(shared, [rule("allow")])
    verdict = mine.hit(WHO)
    shared.down = True
    mine.hit(WHO)
    shared.down = False
    mine.refund(verdict)
    assert "and others succeed" in caplog.text
    mine.close()


URL = "redis://app:secret@127.0.0.1:1/0"


@pytest.mark.parametrize("make", [str, RedisStore])
def test_the_log_names_the_store_without_its_password(
    way: Any, make: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(on_store_error="allow")
    rules = [rule(None, name="a"), rule(None, "5/minute; 9/hour", name="b"), rule("deny", name="c")]
    mine = Limiter(rules, make(URL), settings=settings)
    for _ in range(3):
        assert way(mine).hit(WHO).unavailable
    (message,) = [message for message in caplog.messages if "unreachable" in message]
    assert message.startswith("store redis://127.0.0.1:1/0 unreachable (")
    assert "applying on_store_error (rules: 2 allow, 1 deny); next probe in" in message
    assert ".);" not in message
    assert "Connect call failed" not in message
    assert "secret" not in message + repr(mine.store)
    mine.close()


@each("policy", ["local", "allow", "deny"])
def test_decisions_without_the_store_are_counted(way: Any, policy: str) -> None:
    """Those under way when an outage begins, too."""
    store = SharedStore()
    mine = limiter(store, [rule(policy, "1000/hour; 9000/day")])
    for store.down in (False, True, False):
        for _ in range(2):
            way(mine).hit(WHO)
    assert mine.local_decisions == 4

    async def scenario() -> None:
        hits = [asyncio.ensure_future(mine.ahit(WHO)) for _ in range(20)]
        store.down = True
        await asyncio.gather(*hits)

    asyncio.run(scenario())
    assert mine.local_decisions == 44
