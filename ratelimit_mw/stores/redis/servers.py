"""One server, or whichever the sentinels say is the primary: blocking, and for an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from .address import Address
from .alines import AsyncLines, aconnected, aevaluate
from .lines import Line, Lines, connected, evaluate
from .message import Message
from .sentinel import aprimary, primary

__all__ = ["AsyncServer", "Server"]


class Server:
    """For threads."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lines = Lines(self._connect)

    def ask(self, message: Message, deadline: float) -> Any:
        return evaluate(partial(self._lines.send, deadline=deadline), message)

    def delete(self, names: Sequence[bytes], deadline: float) -> None:
        self._lines.send((b"DEL", *names), deadline=deadline)

    def close(self) -> None:
        self._lines.close()

    def _connect(self, deadline: float) -> Line:
        address = self._address
        host, port = primary(address, deadline) if address.service else address.first
        return connected(address, host, port, deadline)


class AsyncServer:
    """For one event loop."""

    def __init__(self, address: Address, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._lines = AsyncLines(self._connect)

    async def ask(self, message: Message) -> Any:
        return await aevaluate(self._lines.send, message)

    async def delete(self, names: Sequence[bytes]) -> None:
        await self._lines.send((b"DEL", *names))

    async def aclose(self) -> None:
        await self._lines.aclose()

    async def _connect(self) -> Line:
        address = self._address
        host, port = await aprimary(address, self._timeout) if address.service else address.first
        return await aconnected(address, host, port)
