"""Servers that are no Memcached: their replies are errors."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from memcached_handles import NOW, PATIENT, hit
from servers import HOST

from ratelimit_mw import StoreError
from ratelimit_mw.stores.memcached.store import MemcachedStore
from ratelimit_mw.testing.store_suite import WAYS, limit_of

BUDGET_US = 50_000


@contextmanager
def impostor(answer: bytes) -> Iterator[str]:
    """Return the address of a listener that replies to everything with the same bytes."""
    listener = socket.create_server((HOST, 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(ConnectionError):
                if connection.recv(65_536):
                    connection.sendall(answer)
                    connection.settimeout(5)
                    connection.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"{HOST}:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"END\r\nEND\r\n", b"SERVER_ERROR busy\r\n", b"END"]
)
@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_is_no_memcached_is_an_error(answer: bytes, way: str) -> None:
    """No such reply counts as an empty key."""
    with impostor(answer) as place:
        handle = WAYS[way](MemcachedStore(place, timeout_us=BUDGET_US))
        with pytest.raises(StoreError, match="Memcached"):
            handle.apply([hit(limit_of("5/hour"), 0)], NOW)
        handle.close()


@pytest.mark.parametrize("answer", [b"hello\r\n", b"VERSION 1.6.18\r\n", b"ERROR\r\n", b"\r\n", b"STORED\r\nmore\r\n"])
@pytest.mark.parametrize("way", WAYS)
def test_a_ping_rejects_other_replies_than_stored(answer: bytes, way: str) -> None:
    """Memcached replies STORED and nothing else."""
    with impostor(answer) as place:
        handle = WAYS[way](MemcachedStore(place, timeout_us=PATIENT))
        with pytest.raises(StoreError, match="Memcached replied"):
            handle.ping()
        handle.close()
