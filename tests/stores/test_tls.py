"""Certificates of servers and clients: the checks, and the options that turn them off."""

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pytest
from redis_handles import PATIENT, hit, limit_of, ways_of
from servers import HOST, Server, certificates, memcached_running, redis_running, tls_options
from tables import expect_error

from ratelimit_mw import StoreError
from ratelimit_mw.stores import open_store
from ratelimit_mw.traffic import TrafficLog

pytestmark = pytest.mark.slow


def encrypted_redis(folder: Path, *more: str) -> AbstractContextManager[Server]:
    return redis_running(folder, *tls_options(folder), *more, tls=True)


def encrypted_memcached(folder: Path, *more: str) -> AbstractContextManager[Server]:
    files = f"ssl_chain_cert={folder}/cert.pem,ssl_key={folder}/key.pem"
    return memcached_running(folder, "-Z", "-o", ",".join((files, *more)))


RUNNING: dict[str, Callable[..., AbstractContextManager[Server]]] = {
    "redis": encrypted_redis,
    "memcached": encrypted_memcached,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=RUNNING)
def place(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The scheme without TLS, the host and the port of a server with a self-signed certificate."""
    with RUNNING[request.param](folder) as server:
        yield f"{request.param}s://{HOST}:{server.port}"


@pytest.fixture
def other_name(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name of this machine that no certificate has."""
    getaddrinfo = socket.getaddrinfo

    def resolve(host: str, port: int, *rest: Any, flags: int = 0, **named: Any) -> Any:
        if flags and host != HOST:
            raise socket.gaierror(socket.EAI_NONAME, "not an IP address")
        return getaddrinfo(HOST, port, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return "other-name"


def remaining(url: str) -> list[int]:
    """What remains of 5 after a hit, blocking and on a loop."""
    with closing(open_store(url, PATIENT)) as store:
        return [send(hit(limit_of("5/minute")))[0].remaining for send in ways_of(store).values()]


def fails(url: str, message: str, timeout_us: int = PATIENT) -> None:
    """Check that a hit fails, blocking and on a loop, without a part of a password in its error."""
    with closing(open_store(url, timeout_us)) as store:
        for send in ways_of(store).values():
            with pytest.raises(StoreError, match=message) as caught:
                send(hit(limit_of("5/minute")))
            assert "h1dden" not in str(caught.value)


def test_a_certificate_is_checked(place: str, folder: Path, other_name: str) -> None:
    """One that is not trusted is an error, and so is one for another host. Both checks can be turned off.

    The error does not advise to do without TLS.
    """
    fails(place, rf"{place.partition('://')[2]}: \[SSL: CERTIFICATE_VERIFY_FAILED\] certificate verify failed")
    assert remaining(f"{place}?ssl_cert_reqs=none") == [4, 4]
    assert remaining(f"{place}?ssl_ca_certs={folder}/cert.pem") == [4, 4]
    other = f"{place.replace(HOST, other_name)}?ssl_ca_certs={folder}/cert.pem"
    fails(other, f"not valid for '{other_name}'")
    assert remaining(f"{other}&ssl_check_hostname=false") == [4, 4]


@pytest.mark.parametrize(
    ("kind", "options"),
    [("redis", ["--tls-auth-clients", "yes"]), ("memcached", ["ssl_ca_cert={}/cert.pem", "ssl_verify_mode=2"])],
)
def test_a_client_may_show_a_certificate(folder: Path, kind: str, options: list[str]) -> None:
    """A server may accept only clients with a certificate."""
    with RUNNING[kind](folder, *(option.format(folder) for option in options)) as server:
        url = f"{kind}s://{HOST}:{server.port}?ssl_ca_certs={folder}/cert.pem"
        assert remaining(f"{url}&ssl_certfile={folder}/cert.pem&ssl_keyfile={folder}/key.pem") == [4, 4]
        fails(url, "^(Redis|Memcached): ")


@pytest.mark.parametrize("kind", RUNNING)
def test_changed_files_apply_to_new_connections(kind: str, tmp_path: Path) -> None:
    """As when a certificate is renewed. A file that is half written, or that may no longer be read, changes nothing."""
    folder = certificates(tmp_path)
    with RUNNING[kind](folder) as server:
        files = f"ssl_ca_certs={folder}/cert.pem&ssl_certfile={folder}/cert.pem&ssl_keyfile={folder}/key.pem"
        store = open_store(f"{kind}s://{HOST}:{server.port}?{files}", PATIENT)
        for send in ways_of(store).values():
            certificates(folder)
            server.kill()
            server.start()
            store.close()
            assert send(hit(limit_of("5/minute")))[0].remaining == 4
        (folder / "key.pem").write_text("-----BEGIN")
        (folder / "cert.pem").rename(folder / "other.pem")
        store.close()
        for send in ways_of(store).values():
            assert send(hit(limit_of("5/minute")))[0].allowed
        store.close()


def test_a_traffic_log_has_the_same_options(folder: Path) -> None:
    """It has a client of its own, which checks the certificate, too."""
    with encrypted_redis(folder) as server:
        url = f"rediss://{HOST}:{server.port}"
        assert TrafficLog(f"{url}?ssl_ca_certs={folder}/cert.pem").events(0, 1) == {}
        with pytest.raises(StoreError, match="certificate verify failed"):
            TrafficLog(url).events(0, 1)


def test_the_wrong_scheme_is_an_error_that_names_the_right_one(
    place: str, redis_server: Server, memcached_server: Server
) -> None:
    """With TLS to a port without it, the call fails before a login. A server with TLS closes the connection."""
    scheme, _, address = place.partition("s://")
    plain = redis_server if scheme == "redis" else memcached_server
    waits = 200_000 if scheme == "redis" else PATIENT  # Redis waits for the end of a line
    login = "app:h1dden@" if scheme == "redis" else ""
    fails(f"{scheme}s://{login}{HOST}:{plain.port}?ssl_cert_reqs=none", "write redis:// or memcached://", waits)
    fails(f"{scheme}://{login}{address}", "write rediss:// or memcacheds://")


MISTAKES = {
    "ssl_ca_certs=/nowhere.pem": "cannot load the TLS options ssl_ca_certs='/nowhere.pem'.*No such file",
    "ssl_certfile=/nowhere.pem": "cannot load the TLS options ssl_certfile='/nowhere.pem'.*No such file",
    "ssl_keyfile=/nowhere.pem": "cannot load the TLS options ssl_keyfile='/nowhere.pem'.*No such file",
    "ssl_certfile=&ssl_keyfile=/nowhere.pem": "ssl_keyfile='/nowhere.pem'.*No such file",
    "ssl_cert_reqs=maybe": "ssl_cert_reqs is one of required, none; got 'maybe'",
    "ssl_check_hostname=maybe": "ssl_check_hostname is one of true, false; got 'maybe'",
}


def test_certificates_are_read_when_the_store_is_made(folder: Path) -> None:
    """A missing file stops the application at its start, and nobody is asked for the password of a key."""
    locked = ["openssl", "ec", "-in", f"{folder}/key.pem", "-aes128", "-passout", "pass:x", "-out", f"{folder}/locked"]
    subprocess.run(locked, check=True, capture_output=True)
    options = f"ssl_certfile={folder}/cert.pem&ssl_keyfile={folder}/locked"
    expect_error("the key without a password", open_store, f"rediss://localhost?{options}")
    for scheme in RUNNING:
        for options, message in MISTAKES.items():
            expect_error(message, open_store, f"{scheme}s://localhost?{options}")
    expect_error(
        "does not take ssl_ca_certs: TLS needs memcacheds://", open_store, "memcached://h1?ssl_ca_certs=/ca.pem"
    )
