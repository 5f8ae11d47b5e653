"""TLS and login: each connection is encrypted and logged in, and no message shows a password."""

import asyncio
import logging
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from memcached_handles import NOW, PATIENT, ask, hit, idle_connections
from servers import HOST, Server, certificates, memcached_command, memcached_running, wait_for

from ratelimit_mw import ConfigError, Limiter, Rule, StoreError
from ratelimit_mw.stores import check_store_url, open_store
from ratelimit_mw.stores.memcached.client.servers import MemcachedAccess
from ratelimit_mw.stores.memcached.store import MemcachedStore
from ratelimit_mw.testing.store_suite import WAYS, limit_of

PASSWORD = "h1dd3n/%#"
ESCAPED = "h1dd3n%2F%25%23"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = certificates(tmp_path_factory.mktemp("certificates"))
    (folder / "users").write_text(f"app:{PASSWORD}\n", "utf-8")
    return folder


def tls_options(folder: Path, *more: str) -> tuple[str, str, str]:
    files = f"ssl_chain_cert={folder}/cert.pem,ssl_key={folder}/key.pem"
    return ("-Z", "-o", ",".join((files, *more)))


@pytest.fixture(scope="module")
def encrypted(folder: Path) -> Iterator[Server]:
    """A server with TLS and a login."""
    with memcached_running(folder, *tls_options(folder), "-Y", str(folder / "users")) as server:
        yield server


@pytest.fixture(scope="module")
def protected(folder: Path) -> Iterator[Server]:
    """A server with a login."""
    with memcached_running(folder, "-Y", str(folder / "users")) as server:
        yield server


def remaining(url: str, way: str) -> int:
    """Return what remains of 5 after one hit."""
    handle = WAYS[way](open_store(url, PATIENT))
    try:
        return handle.apply([hit(limit_of("5/minute"))], NOW)[0].remaining
    finally:
        handle.close()


# -- login -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_store_logs_in_with_the_user_and_the_password_of_its_url(protected: Server, way: str) -> None:
    """Special characters are percent-encoded; every connection logs in, even after another one."""
    url = f"memcached://app:{ESCAPED}@{HOST}:{protected.port}"
    assert [remaining(url, way) for _ in range(3)] == [4, 4, 4]
    with pytest.raises(StoreError, match="unauthenticated"):
        remaining(f"memcached://{HOST}:{protected.port}", way)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_password_is_an_error_of_the_store_without_the_password(
    protected: Server, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names the server. The limiter continues by ``on_store_error``, and its log shows no password."""
    url = f"memcached://app:s3cr3t@{HOST}:{protected.port}"
    with pytest.raises(StoreError, match=f"{HOST}:{protected.port} rejected the user name or the password") as caught:
        remaining(url, way)
    assert "s3cr3t" not in str(caught.value)
    with caplog.at_level(logging.DEBUG):
        limiter = Limiter([Rule(name="api", limits="5/minute")], store=url)
        assert all(limiter.hit({"ip": "192.0.2.7"}) for _ in range(5))
        limiter.close()
    assert caplog.text
    assert "s3cr3t" not in caplog.text


def test_a_server_without_login_keeps_nothing_of_it(memcached_server: Server) -> None:
    """Such a server takes the login for a write. The value expires at once."""
    assert remaining(f"memcached://app:{ESCAPED}@{HOST}:{memcached_server.port}", "sync") == 4
    assert ask(memcached_server, b"get login", b"END") == b"END\r\n"


def test_a_login_that_cannot_be_used_is_an_error_without_the_password() -> None:
    """The login cannot hold a command."""
    mistakes = {
        "app": "a login needs a user name and a password",
        ":s3cr3t": "a login needs a user name and a password",
        "app:s3%20cr3t": "cannot contain spaces or control characters",
        "app:s3cr3t%0D%0Aflush_all": "cannot contain spaces or control characters",
        "app:s3cr3t%C2%A0": "cannot contain spaces or control characters",
        "app:s3cr3t/x": "has # .* within its login",
        "app:s3cr3t#x": "has # .* within its login",
        "app:s3cr3t@h2@": "expected servers such as",
    }
    for login, message in mistakes.items():
        with pytest.raises(ConfigError, match=message) as caught:
            check_store_url(f"memcached://{login}@h 1" if login.endswith("@") else f"memcached://{login}@h1")
        assert "s3" not in str(caught.value)


def test_no_representation_shows_the_password() -> None:
    store = MemcachedStore("h1", username="app", password="s3cr3t")
    assert "s3cr3t" not in repr([store, vars(store), MemcachedAccess(None, "app", "s3cr3t")])


# -- TLS -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_store_with_tls_and_login_decides(encrypted: Server, folder: Path, way: str) -> None:
    """The certificate is checked for the host of the URL; the login goes over TLS."""
    url = f"memcacheds://app:{ESCAPED}@{HOST}:{encrypted.port}?ssl_ca_certs={folder}/cert.pem"
    assert [remaining(url, way) for _ in range(3)] == [4, 4, 4]


@pytest.mark.slow
def test_idle_connections_with_tls_are_used_again(encrypted: Server, folder: Path) -> None:
    """Blocking calls one after the other open one connection; so do requests on an event loop."""
    limit = limit_of("1000/minute")
    with opened_tls(encrypted, folder) as store:

        async def many() -> list[int]:
            calls = (store.aapply([hit(limit)], NOW) for _ in range(50))
            remaining = [decision.remaining for (decision,) in await asyncio.gather(*calls)]
            await store.aclose()
            return remaining

        before = connections(encrypted, store)
        assert [store.apply([hit(limit)], NOW)[0].remaining for _ in range(50)] == list(range(999, 949, -1))
        assert connections(encrypted, store) == before
        assert asyncio.run(many()) == list(range(949, 899, -1))


def opened_tls(server: Server, folder: Path) -> Any:
    url = f"memcacheds://app:{ESCAPED}@{HOST}:{server.port}?ssl_ca_certs={folder}/cert.pem"
    return closing(open_store(url, PATIENT))


def connections(server: Server, store: MemcachedStore) -> int:
    """Return the number of idle connections after a ping."""
    store.ping()
    return sum(idle_connections(store))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_certificate_is_checked(encrypted: Server, folder: Path, way: str) -> None:
    """A certificate that is not trusted is an error, and so is one for another host. Both checks can be turned off."""
    url = f"memcacheds://app:{ESCAPED}@{HOST}:{encrypted.port}"
    with pytest.raises(StoreError, match=rf"{HOST}:{encrypted.port}.*certificate verify failed"):
        remaining(url, way)
    assert remaining(f"{url}?ssl_cert_reqs=none", way) == 4
    other = f"memcacheds://app:{ESCAPED}@other-name:{encrypted.port}?ssl_ca_certs={folder}/cert.pem"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", resolving(socket.getaddrinfo))
        with pytest.raises(StoreError, match="certificate verify failed: Hostname mismatch"):
            remaining(other, way)
        assert remaining(f"{other}&ssl_check_hostname=false", way) == 4


def resolving(getaddrinfo: Any) -> Any:
    """Resolve every name to this machine."""

    def resolve(host: str, port: int, *rest: Any, flags: int = 0, **named: Any) -> Any:
        if flags and host != HOST:
            raise socket.gaierror(socket.EAI_NONAME, "not an IP address")
        return getaddrinfo(HOST, port, *rest, **named)

    return resolve


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_client_certificate_is_shown(folder: Path, way: str) -> None:
    """A server may accept only clients with a certificate."""
    options = tls_options(folder, f"ssl_ca_cert={folder}/cert.pem", "ssl_verify_mode=2")
    with memcached_running(folder, *options) as server:
        url = f"memcacheds://{HOST}:{server.port}?ssl_ca_certs={folder}/cert.pem"
        assert remaining(f"{url}&ssl_certfile={folder}/cert.pem&ssl_keyfile={folder}/key.pem", way) == 4
        with pytest.raises(StoreError):
            remaining(url, way)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_server_without_tls_gets_no_login(protected: Server, way: str) -> None:
    """``memcacheds://`` to a port without TLS fails before the login is sent. The error names the reason."""
    with pytest.raises(StoreError, match=r"no TLS handshake: .*SSL.* \(for a server without TLS, ") as caught:
        remaining(f"memcacheds://app:s3cr3t@{HOST}:{protected.port}?ssl_cert_reqs=none", way)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_silent_server_does_not_hold_the_handshake_beyond_the_time_budget(way: str) -> None:
    """A listener that accepts and sends nothing is a timeout. The error names the scheme of a server without TLS."""
    with socket.create_server((HOST, 0)) as listener:
        url = f"memcacheds://{HOST}:{listener.getsockname()[1]}?ssl_cert_reqs=none"
        handle = WAYS[way](open_store(url, 50_000))
        message = r"no TLS handshake within the time budget \(for a server without TLS, .* memcached://\)"
        with pytest.raises(StoreError, match=message):
            handle.apply([hit(limit_of("5/minute"))], NOW)
        handle.close()


def test_wrong_certificate_options_are_an_error_at_the_start() -> None:
    """A missing file stops the application at its start."""
    mistakes = {
        "memcacheds://h1?ssl_ca_certs=/nowhere.pem": "expected PEM files; got /nowhere.pem: .*No such file",
        "memcacheds://h1?ssl_certfile=/nowhere.pem": "expected PEM files; got /nowhere.pem: .*No such file",
        "memcacheds://h1?ssl_keyfile=/nowhere.pem": "ssl_keyfile is set without ssl_certfile",
        "memcacheds://h1?ssl_cert_reqs=maybe": "ssl_cert_reqs is one of required, none; got 'maybe'",
        "memcacheds://h1?ssl_check_hostname=maybe": "ssl_check_hostname is one of true, false; got 'maybe'",
        "memcached://h1?ssl_ca_certs=/ca.pem": "memcached:// has no option ssl_ca_certs. Use memcacheds:// for TLS",
    }
    for url, message in mistakes.items():
        with pytest.raises(ConfigError, match=message):
            open_store(url)


# -- Unix sockets ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_server_may_listen_on_a_unix_socket(tmp_path: Path, way: str) -> None:
    """The store counts over it, and an error names it."""
    path = tmp_path / "memcached@1.sock"
    command = [*memcached_command(0)[:-10], "-s", str(path)]
    with subprocess.Popen(command) as process:
        wait_for(path.exists, "the socket")
        handle = WAYS[way](open_store(f"memcached+unix://{path}?prefix=shop:", PATIENT))
        try:
            limit = limit_of("5/minute")
            assert [handle.apply([hit(limit)], NOW)[0].remaining for _ in range(3)] == [4, 3, 2]
            assert [facts.name for facts in handle.store.facts()] == [str(path)]
        finally:
            process.kill()
        process.wait()
        for message in ("Memcached: ", f"cannot connect to {path}"):  # the first one may find the lost connection
            with pytest.raises(StoreError, match=message):
                handle.apply([hit(limit)], NOW)
        handle.close()
    assert repr(MemcachedStore(str(path))) == f"<MemcachedStore memcached+unix://{path}>"
