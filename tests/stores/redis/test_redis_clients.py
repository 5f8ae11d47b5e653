"""Clients of the application, credential providers and connection options: the store uses each as redis-py does."""

import asyncio
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from own_time import hurried
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider
from redis.retry import Retry
from redis_handles import PATIENT, address, answers, client, hit, limit_of, ways_of
from redis_proxy import Proxy
from servers import HOST, Server, redis_running, wait_for

from ratelimit_mw import ConfigError, StoreError
from ratelimit_mw.stores import RedisStore
from ratelimit_mw.testing.store_suite import WAYS


@pytest.mark.parametrize("decodes", [False, True])
def test_calls_go_through_the_clients_of_the_application(redis_server: Server, decodes: bool) -> None:
    """Blocking and async calls share one state, many requests share a call, and the clients stay open, as they were."""
    limit = limit_of("500/hour")
    options: dict[str, Any] = {"host": HOST, "port": redis_server.port, "decode_responses": decodes}
    with redis.Redis(client_name="shop", **options) as own:
        store = RedisStore(client=own, timeout_us=PATIENT)

        async def run() -> None:
            aown = redis.asyncio.Redis(client_name="shop", **options)
            both = RedisStore(client=own, aclient=aown, timeout_us=PATIENT)
            assert (await both.aapply([hit(limit)]))[0].remaining == 498
            decisions = await asyncio.gather(*(both.aapply([hit(limit)]) for _ in range(100)))
            assert min(each[0].remaining for each in decisions) == 398
            await both.aping()
            await both.aforget([hit(limit).key])
            await both.aclose()
            assert await aown.ping()
            await aown.aclose()

        assert store.apply([hit(limit)])[0].remaining == 499
        asyncio.run(run())
        assert store.apply([hit(limit), hit(limit_of("5/hour"))])[0].remaining == 499
        store.ping()
        store.close()
        del store
        assert own.ping()
        (kept,) = own.connection_pool._available_connections
        assert kept._sock.gettimeout() == kept.socket_timeout
        with client(redis_server) as admin:
            assert {each["name"] for each in admin.client_list() if each["name"]} == {"shop"}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_client_of_the_application_sends_nothing_twice(proxy: Proxy, way: str) -> None:
    """The store switches the retries of the client off for its own calls. The application keeps its retries."""
    limit = limit_of("500/hour")
    options: dict[str, Any] = {"port": proxy.port, "retry_on_error": [redis.ConnectionError, redis.TimeoutError]}
    aown = redis.asyncio.Redis(retry=AsyncRetry(NoBackoff(), 3), **options)
    with redis.Redis(retry=Retry(NoBackoff(), 3), **options) as own:
        store: Any = RedisStore(client=own, aclient=aown, timeout_us=2_000_000)
        store.end, store.aend = bool, aown.aclose
        with closing(WAYS[way](store)) as handle:
            handle.hit(limit)
            proxy.heard.clear()
            proxy.swallows = True
            with hurried(store, 0.3), pytest.raises(StoreError, match="time budget"):
                handle.hit(limit)
            assert [command[0] for command in proxy.heard if command[0] != b"CLIENT"] == [b"EVALSHA"]
            proxy.swallows = False
            assert handle.hit(limit).allowed
            handle.end()
        proxy.heard.clear()
        proxy.hears = lambda command: proxy.cut() if command[0] == b"GET" else None
        with pytest.raises(redis.ConnectionError):
            own.get("a key")
        assert [command[0] for command in proxy.heard if command[0] == b"GET"] == [b"GET"] * 4


def test_a_call_without_its_client_is_an_error_of_the_configuration(redis_server: Server) -> None:
    """Only client=: blocking calls work, and an async call names the missing argument. And the reverse."""
    one = hit(limit_of("5/hour"))

    async def run() -> tuple[RedisStore, object]:
        aown = redis.asyncio.Redis(port=redis_server.port)
        astore = RedisStore(aclient=aown, timeout_us=PATIENT)
        assert (await astore.aapply([one]))[0].allowed
        with pytest.raises(ConfigError, match=r"cannot make blocking calls\. Pass client="):
            astore.apply([one])
        await asyncio.to_thread(astore.ping)  # the limiter probes from a thread
        assert (await asyncio.to_thread(astore.apply, [one]))[0].remaining == 3
        await aown.aclose()
        return astore, asyncio.get_running_loop()

    astore, _ended = asyncio.run(run())
    with pytest.raises(ConfigError, match="cannot make blocking calls"):
        astore.apply([one])
    with redis.Redis(port=redis_server.port) as own:
        store = RedisStore(client=own, timeout_us=PATIENT)
        assert store.apply([one])[0].allowed
        with pytest.raises(ConfigError, match=r"cannot make async calls\. Pass aclient="):
            asyncio.run(store.aapply([one]))


def test_arguments_that_do_not_fit_are_rejected() -> None:
    """No server, two servers, a client of the other kind, two logins, a client with one connection."""
    provider = UsernamePasswordCredentialProvider("ann", "s3cret")
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({}, "either a URL, or client="),
        ({"url": "redis://", "client": redis.Redis()}, "either a URL, or client="),
        ({"client": redis.asyncio.Redis()}, "client: expected a redis.Redis; got a Redis"),
        ({"aclient": redis.Redis()}, "aclient: expected a redis.asyncio.Redis"),
        ({"client": "redis://"}, r"client: expected a redis\.Redis; got a str"),
        ({"client": redis.Redis(), "credential_provider": provider}, "credential_provider= needs a URL"),
        ({"url": "redis://:s3cret@localhost", "credential_provider": provider}, "either a login in the URL"),
        ({"url": "redis://localhost?colour=red"}, "no option 'colour'"),
    ]
    for arguments, message in mistakes:
        with pytest.raises(ConfigError, match=message) as caught:
            RedisStore(**arguments)
        assert "s3cret" not in str(caught.value)


def test_no_error_shows_the_password_of_a_sentinel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions of redis-py add the clients of all sentinels, with their options."""
    for kind in (redis.Redis, redis.asyncio.Redis):
        monkeypatch.setattr(kind, "__repr__", lambda _: "<password=hidden>")
    quick, aquick = ({"retry": kind(NoBackoff(), 0)} for kind in (Retry, AsyncRetry))
    own = redis.Sentinel([(HOST, 1)], sentinel_kwargs=quick).master_for("shop", **quick)
    aown = redis.asyncio.Sentinel([(HOST, 1)], sentinel_kwargs=aquick).master_for("shop", **aquick)
    store = RedisStore(client=own, aclient=aown, timeout_us=PATIENT)
    for ping in (store.ping, lambda: asyncio.run(store.aping())):
        with pytest.raises(StoreError, match=r"No master found for 'shop'$") as caught:
            ping()
        assert "hidden" not in "".join(traceback.format_exception(caught.value))


class Rotating(CredentialProvider):
    """A provider that only has a blocking method, as AWS examples do."""

    def __init__(self, wait: threading.Event | None = None) -> None:
        self.calls: list[str] = []
        self._wait = wait

    def get_credentials(self) -> tuple[str, str]:
        self.calls.append(threading.current_thread().name)
        if self._wait is not None:
            self._wait.wait(20)
        return "default", "s3cret"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with redis_running(Path(tmp_path_factory.mktemp("redis")), "--requirepass", "s3cret") as server:
        yield server


@pytest.mark.slow
def test_a_credential_provider_logs_in(guarded: Server) -> None:
    """Blocking and async connections ask the provider, in a thread of its own."""
    provider, limit = Rotating(), limit_of("5/hour")
    store = RedisStore(f"redis://{HOST}:{guarded.port}/2", timeout_us=PATIENT, credential_provider=provider)
    assert [send(hit(limit))[0].remaining for send in ways_of(store).values()] == [4, 3]
    store.close()
    assert provider.calls == ["ratelimit_mw background"] * 2


@pytest.mark.slow
def test_a_slow_credential_provider_is_within_the_budget(guarded: Server) -> None:
    """A call ends by its deadline, and the next call gets the credentials that the provider was asked for."""
    wait = threading.Event()
    provider = Rotating(wait)
    store = RedisStore(address(guarded), timeout_us=50_000, credential_provider=provider)
    patient = RedisStore(address(guarded), timeout_us=PATIENT, credential_provider=provider)
    for send in 2 * [*ways_of(store).values()]:
        with pytest.raises(StoreError, match="time budget"):
            send(hit(limit_of("5/hour")))
    assert len(provider.calls) == 1
    wait.set()
    assert patient.apply([hit(limit_of("5/hour"))])[0].allowed
    patient.close()


def test_a_pool_that_waits_holds_no_call_beyond_its_budget(redis_server: Server) -> None:
    """The application has the only connection, and its pool would wait 5 s for it."""
    options: dict[str, Any] = {"host": HOST, "port": redis_server.port}
    limit, pool = limit_of("500/hour"), redis.BlockingConnectionPool(max_connections=1, timeout=5, **options)
    store = RedisStore(client=redis.Redis(connection_pool=pool), timeout_us=50_000)
    wait_for(lambda: answers(store), "a first reply")
    taken = pool.get_connection()
    with pytest.raises(StoreError, match="time budget"):
        store.apply([hit(limit)])
    pool.release(taken)
    wait_for(lambda: answers(store), "a reply over the same connection")
    # Calls that were given up still take the connection, and open it again.
    wait_for(lambda: "ratelimit_mw background" not in [each.name for each in threading.enumerate()], "their threads")
    pool.disconnect()


@pytest.mark.parametrize("kind", ["ConnectionPool", "BlockingConnectionPool"])
def test_calls_wait_for_a_connection_of_a_full_pool(redis_server: Server, kind: str) -> None:
    """A pool with two connections serves ten threads and thirty tasks. A full pool is no outage."""
    limit = limit_of("500/hour")
    options: dict[str, Any] = {"host": HOST, "port": redis_server.port, "max_connections": 2}
    pool = getattr(redis, kind)(**options)
    store = RedisStore(client=redis.Redis(connection_pool=pool), timeout_us=PATIENT)
    with ThreadPoolExecutor(10) as threads:
        decisions = list(threads.map(lambda _: store.apply([hit(limit)])[0].remaining, range(100)))
    assert sorted(decisions) == list(range(400, 500))
    pool.disconnect()

    async def run() -> None:
        aown = redis.asyncio.Redis.from_pool(getattr(redis.asyncio, kind)(**options))
        both = RedisStore(aclient=aown, timeout_us=PATIENT)
        other = [limit_of(f"{n}/hour") for n in range(1, 31)]
        assert all(each[0].allowed for each in await asyncio.gather(*(both.aapply([hit(one)]) for one in other)))
        await both.aclose()
        await aown.aclose()

    asyncio.run(run())
