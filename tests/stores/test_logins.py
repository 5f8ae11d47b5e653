"""Every scheme of Redis, with real servers that need a password: hits, rejections, and no password in any text."""

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest
from redis_handles import PATIENT, answers, hit, limit_of, ways_of
from servers import (
    HOST,
    certificates,
    cluster_running,
    redis_running,
    sentinel_running,
    tls_options,
    wait_for,
)

from ratelimit_mw import Limiter, Rule, StoreError
from ratelimit_mw.stores import open_store
from ratelimit_mw.traffic import TrafficLog

SECRET, OTHER = "s3cret/ä:@", "0ther"
IN_ADDRESS = "s3cret%2F%C3%A4%3A%40"
LOCKED = ("--requirepass", SECRET, "--masterauth", SECRET)
REJECTED = "invalid username-password pair"
QUICK = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")


def trusting(folder: Path, more: str = "") -> str:
    return f"?ssl_ca_certs={folder}/cert.pem{more}"


@contextmanager
def of_a_user(folder: Path) -> Iterator[str]:
    with redis_running(
        folder, "--user", "ann", "on", f">{SECRET}", "~rl:*", "+@all", "--user", "default", "off"
    ) as one:
        yield f"redis://ann:{IN_ADDRESS}@{HOST}:{one.port}/3"


@contextmanager
def of_all(folder: Path) -> Iterator[str]:
    with redis_running(folder, *LOCKED) as one:
        yield f"valkey://:{IN_ADDRESS}@{HOST}:{one.port}"


@contextmanager
def encrypted(folder: Path) -> Iterator[str]:
    with redis_running(folder, *LOCKED, *tls_options(certificates(folder)), tls=True) as one:
        yield f"rediss://default:{IN_ADDRESS}@localhost:{one.port}/0{trusting(folder)}"


@contextmanager
def on_a_path(folder: Path) -> Iterator[str]:
    with redis_running(folder, *LOCKED, "--unixsocket", str(folder / "redis.sock")):
        yield f"unix://:{IN_ADDRESS}@{folder}/redis.sock?db=2"


@contextmanager
def watched(folder: Path, tls: bool = False) -> Iterator[str]:
    more = tls_options(certificates(folder)) if tls else []
    # Under load a healthy primary may answer the sentinel late.
    service = [f'sentinel auth-pass mymaster "{SECRET}"', "sentinel down-after-milliseconds mymaster 60000"]
    with (
        redis_running(folder, *LOCKED, *QUICK, *more, tls=tls) as primary,
        redis_running(folder, *LOCKED, *QUICK, *more, "--replicaof", f"{HOST} {primary.port}", tls=tls),
        sentinel_running(
            folder, "mymaster", primary, "--requirepass", OTHER, *more, settings=service, tls=tls
        ) as sentinel,
    ):
        options = trusting(folder, "&") if tls else "?"
        place = f"{HOST}:{sentinel.port}/mymaster/1{options}sentinel_password={OTHER}"
        yield f"redis{'s' * tls}+sentinel://:{IN_ADDRESS}@{place}"


@contextmanager
def spread(folder: Path, tls: bool = False) -> Iterator[str]:
    more, login = [], {"password": SECRET}
    if tls:
        more = [*tls_options(certificates(folder)), "--tls-cluster", "yes"]
        login = {**login, "ssl": True, "ssl_ca_certs": str(folder / "cert.pem")}  # type: ignore[dict-item]
    with cluster_running(folder, *LOCKED, *more, tls=tls, **login) as nodes:
        options = trusting(folder) if tls else ""
        yield f"redis{'s' * tls}+cluster://:{IN_ADDRESS}@{HOST}:{nodes[0].port}{options}"


SCENES: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "redis": of_a_user,
    "valkey": of_all,
    "rediss": encrypted,
    "unix": on_a_path,
    "redis+sentinel": watched,
    "rediss+sentinel": lambda folder: watched(folder, tls=True),
    "redis+cluster": spread,
    "rediss+cluster": lambda folder: spread(folder, tls=True),
}


SMOKE = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster")


@pytest.mark.parametrize(
    "scheme", [pytest.param(name, marks=[pytest.mark.thorough] * (name not in SMOKE)) for name in SCENES]
)
@pytest.mark.slow
def test_a_server_with_a_password(scheme: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The URL is all that is needed. Without the password, or with another one, each call fails and shows none.

    A traffic log takes the URLs of Redis, too.
    """
    with SCENES[scheme](tmp_path) as address:
        with closing(open_store(address, PATIENT)) as store:
            wait_for(lambda: answers(store), address)
        check_decisions(address)
        with closing(TrafficLog(address, clock=lambda: 10**15)) as log:
            log.record("api", "192.0.2.7")
            assert log.top("api", 10**9, 10**9) == [("192.0.2.7", log.total("api", 10**9, 10**9))]
        check_wrong_password(address, caplog)
        scheme, _, place = address.partition("://")
        with closing(open_store(f"{scheme}://{place.rpartition('@')[2]}", PATIENT)) as store:
            for send in ways_of(store).values():
                with pytest.raises(StoreError, match="Authentication required"):
                    send(hit(limit_of("5/minute")))


def check_decisions(address: str) -> None:
    """Blocking and on a loop, several limits of one request too, and by both the same states."""
    limiter = Limiter(
        [Rule(name="api", limits=["3/hour", "2/day"]), Rule(name="all", limits="9/hour", key=[], algorithm="gcra")],
        open_store(address, PATIENT),
    )
    who = {"ip": "192.0.2.7"}

    async def on_a_loop() -> list[bool]:
        found = [(await limiter.ahit(who)).allowed, (await limiter.ahit(who)).allowed]
        await limiter.aclose()
        return found

    assert limiter.hit(who).allowed
    assert asyncio.run(on_a_loop()) == [True, False]
    assert not limiter.hit(who).allowed
    limiter.reset("api", who)
    assert limiter.hit(who).allowed
    assert limiter.peek({"ip": "192.0.2.8"}).decisions[-1].remaining == 9 - 3 - 1
    limiter.close()


def check_wrong_password(address: str, caplog: pytest.LogCaptureFixture) -> None:
    """The error names the problem. Neither the error, the log nor a text of the store has either password."""
    store = open_store(address.replace(IN_ADDRESS, "h1dden"), PATIENT)
    told = [repr(store), str(vars(store))]
    for send in ways_of(store).values():
        with pytest.raises(StoreError, match=REJECTED) as caught:
            send(hit(limit_of("5/minute")))
        told += [str(caught.value), repr(caught.value), repr(caught.value.__cause__), repr(caught.value.__context__)]
    limiter = Limiter([Rule(name="api", limits="1/minute")], store)
    with caplog.at_level(logging.DEBUG):
        assert [bool(limiter.hit({"ip": "192.0.2.7"})) for _ in range(4)] == [True, False, False, False]
    limiter.close()
    assert re.search(REJECTED, caplog.text)
    told += [repr(limiter), str(vars(limiter)), caplog.text]
    assert not any(secret in text for text in told for secret in ("h1dden", SECRET, IN_ADDRESS, OTHER))


@pytest.mark.slow
def test_a_command_that_the_server_does_not_know_is_not_quoted(tmp_path: Path) -> None:
    """Redis repeats unknown commands with their arguments: no error has a password or a key."""
    renamed = ("--rename-command", "AUTH", "", "--rename-command", "EVALSHA", "")
    with redis_running(tmp_path, *renamed) as server:
        for login in ("ann:h1dden@", ""):
            for send in ways_of(open_store(f"redis://{login}{HOST}:{server.port}", PATIENT)).values():
                with pytest.raises(StoreError, match="unknown command") as caught:
                    send(hit(limit_of("5/minute"), "h1dden"))
                cause = caught.value.__cause__
                assert "h1dden" not in f"{caught.value} {cause!r} {caught.value.__context__!r}"
