"""Sends requests over connections that stay open, and reads the responses."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .hostile import HostileRequest

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)


class ServerResponse(NamedTuple):
    """The response to one request."""

    status: int
    head: bytes
    body: bytes

    def header(self, name: bytes) -> str:
        found = re.search(rb"\r\n" + name + rb":[ \t]*([^\r]*)", self.head, re.IGNORECASE)
        return found[1].decode("latin-1") if found else ""


def responses(port: int, requests: Sequence[HostileRequest]) -> Iterator[tuple[HostileRequest, ServerResponse | None]]:
    """Yield each request with its response, None where the server closes the connection without one.

    Each request waits for the response before it. Some servers reject all that they have received with one response.
    """
    at = 0
    while at < len(requests):
        with socket.create_connection(("127.0.0.1", port), 20, (requests[at].source, 0)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader, is_first, stays_open = _Reader(sock), True, True
            while stays_open and at < len(requests) and requests[at].source == sock.getsockname()[0]:
                response = _respond(sock, reader, requests[at])
                if response is None and not is_first:  # the server may have closed the connection before
                    break
                yield requests[at], response
                stays_open = response is not None and not _CLOSES.search(response.head)
                is_first = False
                at += 1


def _respond(sock: socket.socket, reader: _Reader, request: HostileRequest) -> ServerResponse | None:
    try:
        sock.sendall(request.raw)
        return reader.response(request.is_head)
    except OSError:
        return None


class _Reader:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._kept = b""

    def response(self, is_head: bool) -> ServerResponse | None:
        head = self._until(b"\r\n\r\n")
        if head is None:
            return None
        status = int(head[9:12])
        if status < 200:
            return self.response(is_head)
        if is_head or status in (204, 304):
            return ServerResponse(status, head, b"")
        if length := _LENGTH.search(head):
            body = self._exactly(int(length[1]))
        elif _CHUNKED.search(head):
            body = self._chunks()
        else:
            body = self._rest()
        return None if body is None else ServerResponse(status, head, body)

    def _until(self, end: bytes) -> bytes | None:
        while end not in self._kept:
            if not self._more():
                return None
        found, _, self._kept = self._kept.partition(end)
        return found + end

    def _exactly(self, size: int) -> bytes | None:
        while len(self._kept) < size:
            if not self._more():
                return None
        found, self._kept = self._kept[:size], self._kept[size:]
        return found

    def _chunks(self) -> bytes | None:
        body = b""
        while (line := self._until(b"\r\n")) is not None:
            size = int(line.split(b";")[0], 16)
            chunk = self._exactly(size + 2)
            if not size or chunk is None:
                return body
            body += chunk[:-2]
        return None

    def _rest(self) -> bytes:
        while self._more():
            pass
        found, self._kept = self._kept, b""
        return found

    def _more(self) -> bool:
        part = self._sock.recv(262_144)
        self._kept += part
        return bool(part)
