"""A proxy between a store and its server that records commands and can drop replies or connections."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hiredis import Reader
from servers import HOST


class Proxy:
    """Connections made while ``deaf`` is true, or before fall_silent, get no reply, no end and no reset."""

    def __init__(self, port: int) -> None:
        self.server_port = port
        """Where new connections lead to."""
        self._listener = socket.create_server((HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        self.heard: list[list[bytes]] = []
        self.hears: Callable[[list[bytes]], Any] = lambda command: None
        self.swallows = False
        self.open: set[socket.socket] = set()
        """The connections that neither side has ended."""
        self._lines: list[tuple[socket.socket, socket.socket]] = []
        self._silent: set[socket.socket] = set()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def count(self, key: str) -> int:
        """Return how many commands had this key."""
        return sum(any(part.endswith(key.encode()) for part in command) for command in self.heard)

    def fall_silent(self) -> None:
        """Stop replies on all open connections. New connections work."""
        self._silent.update(near for near, _ in self._lines)

    def cut(self) -> None:
        """Close all open connections."""
        for pair in list(self._lines):  # New connections stay
            for end in pair:
                _shut(end)

    def close(self) -> None:
        _shut(self._listener)
        self._accepting.join()
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection((HOST, self.server_port))
            self._lines.append((near, far))
            self.open.add(near)
            threading.Thread(target=self._serve, args=(near, far), daemon=True).start()

    def _serve(self, near: socket.socket, far: socket.socket) -> None:
        """Carry data until one side ends. Close no socket that a thread reads: its number may be used again."""
        with near, far:
            back = threading.Thread(target=self._back, args=(near, far), daemon=True)
            back.start()
            self._there(near, far)
            self.open.remove(near)
            _shut(far)
            back.join()

    def _there(self, near: socket.socket, far: socket.socket) -> None:
        reader = Reader()
        while data := _received(near):
            if near in self._silent:
                continue
            reader.feed(data)
            while command := reader.gets():
                self.heard.append(command)
                self.hears(command)
            with contextlib.suppress(OSError):
                far.sendall(data)

    def _back(self, near: socket.socket, far: socket.socket) -> None:
        while data := _received(far):
            if not self.swallows and near not in self._silent:
                with contextlib.suppress(OSError):
                    near.sendall(data)
        _shut(near)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(65_536)
    except OSError:
        return b""


@contextmanager
def proxied(port: int) -> Iterator[Proxy]:
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
