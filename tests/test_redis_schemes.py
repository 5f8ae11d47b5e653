"""Every kind of address leads to real servers that ask for a password: opened, hit and refused, and nothing told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
import redis
from redis_handles import PATIENT, hit, limit_of
from servers import (
    HOST,
    certificates,
    cluster_running,
    redis_running,
    sentinel_running,
    tls_options,
    wait_for,
)

from ratelimit_mw import ConfigError, Limiter, Quota, Rule, StoreError
from ratelimit_mw.decision import Change, Decision, Hit, Spent
from ratelimit_mw.limit import Limit
from ratelimit_mw.stores import Store, open_store
from ratelimit_mw.testing import StoreCompliance

SECRET, OTHER = "s3cret/ä:@", "0ther"
IN_ADDRESS = "s3cret%2F%C3%A4%3A%40"
LOCKED = ("--requirepass", SECRET, "--masterauth", SECRET)
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
    service = [f'sentinel auth-pass mymaster "{SECRET}"']
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


@pytest.fixture(scope="module", params=SCENES)
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An address of each kind, with all that it needs to be let in."""
    with SCENES[request.param](tmp_path_factory.mktemp("scene")) as found:
        wait_for(lambda: answers(open_store(found, PATIENT)), found)
        yield found


def answers(store: Store) -> bool:
    try:
        store.ping()
    except StoreError:
        return False
    finally:
        store.close()
    return True


def test_every_address_is_opened_hit_and_refused(address: str) -> None:
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
    limiter.reset("api", who)
    limiter.reset("all", {})
    limiter.close()


def ways(store: Store) -> dict[str, Callable[[Hit], list[Decision]]]:
    async def asking(one: Hit) -> list[Decision]:
        try:
            return await store.aapply([one])
        finally:
            await store.aclose()

    return {"blocking": lambda one: store.apply([one]), "on a loop": lambda one: asyncio.run(asking(one))}


def test_a_wrong_password_is_refused_and_not_told(address: str, caplog: pytest.LogCaptureFixture) -> None:
    """The error says what is wrong; neither it nor the log nor any text of the store holds either password."""
    store = open_store(address.replace(IN_ADDRESS, "h1dden"), PATIENT)
    told = [repr(store), str(vars(store))]
    for send in ways(store).values():
        with pytest.raises(StoreError, match="WRONGPASS") as caught:
            send(hit(limit_of("5/minute")))
        told += [str(caught.value), repr(caught.value), repr(caught.value.__cause__), repr(caught.value.__context__)]
    limiter = Limiter([Rule(name="api", limits="1/minute")], store)
    with caplog.at_level(logging.DEBUG):
        assert [bool(limiter.hit({"ip": "192.0.2.7"})) for _ in range(4)] == [True, False, False, False]
    assert "WRONGPASS" in caplog.text
    told += [repr(limiter), str(vars(limiter)), caplog.text]
    assert not any(secret in text for text in told for secret in ("h1dden", SECRET, IN_ADDRESS, OTHER))


def test_no_password_at_all_is_refused(address: str) -> None:
    """A server that wants to know who asks is told nothing it was not told to be told."""
    scheme, _, place = address.partition("://")
    store = open_store(f"{scheme}://{place.rpartition('@')[2]}", PATIENT)
    for send in ways(store).values():
        with pytest.raises(StoreError, match="NOAUTH"):
            send(hit(limit_of("5/minute")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls(folder: Path) -> Iterator[str]:
    """Host and port of a server whose certificate nobody knows, but who was told of it."""
    with redis_running(folder, *tls_options(folder), tls=True) as server:
        yield f"127.0.0.1:{server.port}"


def first(address: str) -> list[int]:
    """What each way says of a fresh key."""
    store = open_store(address, PATIENT)
    found = [send(hit(limit_of("5/minute")))[0].remaining for send in ways(store).values()]
    store.close()
    return found


def test_a_certificate_that_nobody_vouches_for_is_refused(tls: str) -> None:
    """Blocking and on a loop; the error says which server it was."""
    for send in ways(open_store(f"rediss://{tls}", PATIENT)).values():
        with pytest.raises(StoreError, match=rf"{tls}.*certificate verify failed"):
            send(hit(limit_of("5/minute")))


def test_a_certificate_for_another_name_is_refused(tls: str, folder: Path) -> None:
    """127.0.0.2 is the same server by a name that its certificate does not have, unless names are not to be checked."""
    with ExitStack() as stack:
        server = stack.enter_context(
            redis_running(folder, *tls_options(folder), "--bind", "127.0.0.1", "127.0.0.2", tls=True)
        )
        other = f"rediss://127.0.0.2:{server.port}{trusting(folder)}"
        for send in ways(open_store(other, PATIENT)).values():
            with pytest.raises(StoreError, match=r"not valid for '127\.0\.0\.2'"):
                send(hit(limit_of("5/minute")))
        assert first(f"{other}&ssl_check_hostname=false") == [4, 4]


def test_who_insists_may_trust_anybody(tls: str) -> None:
    """``ssl_cert_reqs=none`` encrypts and checks nothing."""
    assert first(f"rediss://{tls}?ssl_cert_reqs=none") == [4, 4]


def test_a_client_may_show_a_certificate(folder: Path) -> None:
    """A server that lets in only who has one."""
    with redis_running(folder, *tls_options(folder), "--tls-auth-clients", "yes", tls=True) as server:
        mine = f"&ssl_certfile={folder}/cert.pem&ssl_keyfile={folder}/key.pem"
        assert first(f"rediss://{HOST}:{server.port}{trusting(folder, mine)}") == [4, 4]
        for send in ways(open_store(f"rediss://{HOST}:{server.port}{trusting(folder)}", PATIENT)).values():
            with pytest.raises(StoreError):
                send(hit(limit_of("5/minute")))


def test_a_server_without_encryption_is_not_spoken_to(redis_server: object) -> None:
    """``rediss://`` to a port that talks plainly fails before anything is said."""
    port = redis_server.port  # type: ignore[attr-defined]
    for send in ways(open_store(f"rediss://:h1dden@{HOST}:{port}", PATIENT)).values():
        with pytest.raises(StoreError) as caught:
            send(hit(limit_of("5/minute")))
        assert "h1dden" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("ssl_ca_certs=/nowhere.pem", "ssl_ca_certs: expected a file of certificates in PEM; /nowhere.pem is not"),
        ("ssl_certfile=/nowhere.pem", "ssl_certfile: expected a certificate and its key in PEM"),
        ("ssl_keyfile=/nowhere.pem", "ssl_certfile, which is missing"),
        ("ssl_cert_reqs=optional", "ssl_cert_reqs is one of required, none; got 'optional'"),
        ("ssl_check_hostname=maybe", "ssl_check_hostname is one of true, false; got 'maybe'"),
    ],
)
def test_certificates_are_read_when_the_store_is_made(options: str, message: str) -> None:
    """A missing file stops the application at its start, not its limits at the first request."""
    with pytest.raises(ConfigError, match=message):
        open_store(f"rediss://localhost?{options}")


def test_a_command_that_the_server_does_not_know_is_not_quoted(tmp_path: Path) -> None:
    """Redis repeats unknown commands with their arguments: neither a password nor a key comes back in an error."""
    renamed = ("--rename-command", "AUTH", "", "--rename-command", "EVALSHA", "")
    with redis_running(tmp_path, *renamed) as server:
        for login in ("ann:h1dden@", ""):
            for send in ways(open_store(f"redis://{login}{HOST}:{server.port}", PATIENT)).values():
                with pytest.raises(StoreError, match="unknown command") as caught:
                    send(hit(limit_of("5/minute"), "h1dden"))
                cause = caught.value.__cause__
                assert "h1dden" not in f"{caught.value} {cause!r} {caught.value.__context__!r}"


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a user with the very rights of docs/redis.md."""
    with redis_running(tmp_path_factory.mktemp("rights")) as server:
        with redis.Redis(port=server.port) as admin:
            admin.execute_command("ACL SETUSER", *rights())
        yield f"redis://ratelimit:s3cret@{HOST}:{server.port}/1"


def rights() -> list[str]:
    """The line of the page."""
    page = (Path(__file__).parent.parent / "docs" / "redis.md").read_text("utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("ACL SETUSER ratelimit ")]
    return line.replace("PASSWORD", "s3cret").split()[2:]


class TestRights(StoreCompliance):
    """They are enough for whatever a store has to do."""

    @pytest.fixture(autouse=True)
    def _server(self, limited: str) -> None:
        self.url = limited

    def make_store(self) -> Store:
        return open_store(self.url, PATIENT)


def test_the_rights_are_enough_for_the_rest(limited: str) -> None:
    """Pings and requests in flight too; keys of others are not to be had."""
    store, slots = open_store(limited, PATIENT), Limit("slots", 0, Quota.parse("2 concurrent"), "fixed-window")
    store.ping()
    taken = store.apply([hit(slots)])[0]
    store.correct([Change(slots, hit(slots).key, 0, Spent(taken.at_us, 1))])
    store.correct([Change(slots, hit(slots).key, 1, Spent(taken.at_us, 1))])
    store.close()
    other = open_store(f"{limited}?prefix=app:", PATIENT)
    with pytest.raises(StoreError, match="NOPERM"):
        other.ping()
    with pytest.raises(StoreError, match="NOPERM"):
        other.apply([hit(slots)])
    other.close()
