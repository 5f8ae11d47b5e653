"""Certificates of servers and clients: the checks, their time, and the options that turn them off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_handles import PATIENT, hit, limit_of, ways_of
from servers import HOST, Server, certificates, redis_running, tls_options

from ratelimit_mw import ConfigError, StoreError
from ratelimit_mw.stores import open_store


def trusting(folder: Path, more: str = "") -> str:
    return f"?ssl_ca_certs={folder}/cert.pem{more}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls(folder: Path) -> Iterator[str]:
    """Host and port of a server with a self-signed certificate."""
    with redis_running(folder, *tls_options(folder), tls=True) as server:
        yield f"127.0.0.1:{server.port}"


def first(address: str) -> list[int]:
    """The remaining amount of a fresh key, blocking and on a loop."""
    store = open_store(address, PATIENT)
    found = [send(hit(limit_of("5/minute")))[0].remaining for send in ways_of(store).values()]
    store.close()
    return found


@pytest.mark.slow
def test_a_self_signed_certificate_is_rejected(tls: str) -> None:
    """Blocking and on a loop; the error names the server."""
    for send in ways_of(open_store(f"rediss://{tls}", PATIENT)).values():
        with pytest.raises(StoreError, match=rf"{tls}.*certificate verify failed"):
            send(hit(limit_of("5/minute")))


@pytest.mark.slow
def test_a_certificate_for_another_name_is_rejected(folder: Path) -> None:
    """127.0.0.2 is the same server by a name that its certificate does not have, unless names are not to be checked."""
    with redis_running(folder, *tls_options(folder), "--bind", "127.0.0.1", "127.0.0.2", tls=True) as server:
        other = f"rediss://127.0.0.2:{server.port}{trusting(folder)}"
        for send in ways_of(open_store(other, PATIENT)).values():
            with pytest.raises(StoreError, match=r"not valid for '127\.0\.0\.2'"):
                send(hit(limit_of("5/minute")))
        assert first(f"{other}&ssl_check_hostname=false") == [4, 4]


@pytest.mark.slow
def test_ssl_cert_reqs_none_checks_nothing(tls: str) -> None:
    """``ssl_cert_reqs=none`` encrypts and checks nothing."""
    assert first(f"rediss://{tls}?ssl_cert_reqs=none") == [4, 4]


@pytest.mark.slow
def test_a_client_may_show_a_certificate(folder: Path) -> None:
    """A server that requires a client certificate."""
    with redis_running(folder, *tls_options(folder), "--tls-auth-clients", "yes", tls=True) as server:
        mine = f"&ssl_certfile={folder}/cert.pem&ssl_keyfile={folder}/key.pem"
        assert first(f"rediss://{HOST}:{server.port}{trusting(folder, mine)}") == [4, 4]
        for send in ways_of(open_store(f"rediss://{HOST}:{server.port}{trusting(folder)}", PATIENT)).values():
            with pytest.raises(StoreError):
                send(hit(limit_of("5/minute")))


def test_the_wrong_scheme_is_an_error_that_names_the_right_one(tls: str, redis_server: Server) -> None:
    """``rediss://`` to a port without TLS fails before the login, and a server with TLS closes the connection."""
    plain = f"{HOST}:{redis_server.port}"
    wrong = {
        f"rediss://:h1dden@{plain}": "write redis://",
        f"redis://:h1dden@{tls}": "write rediss://",
        f"redis://{tls}": "write rediss://",
    }
    for url, message in wrong.items():
        for send in ways_of(open_store(url, 200_000 if plain in url else PATIENT)).values():
            with pytest.raises(StoreError, match=message) as caught:
                send(hit(limit_of("5/minute")))
            assert "h1dden" not in str(caught.value)


def test_certificates_are_read_when_the_store_is_made() -> None:
    """A missing file stops the application at its start, not its limits at the first request."""
    mistakes = {
        "ssl_ca_certs=/nowhere.pem": "cannot load the TLS options ssl_ca_certs='/nowhere.pem'.*No such file",
        "ssl_certfile=/nowhere.pem&ssl_ca_data=h1dden": "cannot load the TLS options ssl_certfile='/nowhere.pem'",
        "ssl_keyfile=/nowhere.pem": "ssl_keyfile is set without ssl_certfile",
        "ssl_cert_reqs=maybe": "ssl_cert_reqs is one of required, optional, none; got 'maybe'",
        "ssl_check_hostname=maybe": "ssl_check_hostname is one of true, false; got 'maybe'",
        "ssl_min_version=SSLv3": "ssl_min_version is one of TLSv1.2, TLSv1.3; got 'SSLv3'",
        "ssl_ciphers=nonsense": "cannot load the TLS options",
    }
    for options, message in mistakes.items():
        with pytest.raises(ConfigError, match=message) as caught:
            open_store(f"rediss://localhost?{options}")
        assert "h1dden" not in str(caught.value)
