"""How to reach one server of Redis: blocking, or on an event loop."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

from hiredis import pack_command
from redis import ResponseError

from ...budget import LoopClock, ThreadClock
from ...wire import Channel
from ..address import Address
from .errors import Command
from .login import Connect, OpenChannel, blocking_channel, blocking_connect, loop_channel, loop_connect


class Transport(NamedTuple):
    """How to wait and to connect."""

    clock: ThreadClock | LoopClock
    """The clock of deadlines."""
    lock: Callable[[], AbstractAsyncContextManager[Any]]
    connect: Connect
    channel: OpenChannel

    def open(self, address: Address, host: str, port: int) -> Channel:
        return self.channel(partial(self.connect, address, host, port))


def blocking_transport(clock: ThreadClock) -> Transport:
    return Transport(clock, nullcontext, blocking_connect(clock), blocking_channel(clock))


def loop_transport(clock: LoopClock) -> Transport:
    """Return the transport of the running event loop."""
    return Transport(clock, asyncio.Lock, loop_connect(clock), loop_channel(clock))


async def call(channel: Channel, command: Command, deadline: float) -> Any:
    """Return the reply to a command. Raises ``ResponseError`` for an error reply."""
    (reply,) = await (await channel.send(pack_command(command), 1, deadline))
    if isinstance(reply, ResponseError):
        raise reply
    return reply
