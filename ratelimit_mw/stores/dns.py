"""Names of servers, looked up without holding anybody.

Nobody can be made to stop looking up a name, so threads of our own do it: one for a name, however many wait for it.
"""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import Future
from typing import Any, NamedTuple

__all__ = ["Way", "look_up"]


class Way(NamedTuple):
    """One of the addresses that a name stands for."""

    family: int
    end: Any


_LookUp = tuple[int, str, int]
_under_way: dict[_LookUp, Future[list[Way]]] = {}


def look_up(host: str, port: int) -> Future[list[Way]]:
    """The addresses that a name stands for, as soon as they are known."""
    asked: Future[list[Way]] = Future()
    asked.set_running_or_notify_cancel()  # one who gives up does not give up for the others
    try:
        asked.set_result(_found(host, port, socket.AI_NUMERICHOST))
        return asked
    except OSError:
        pass  # it is a name
    what = (os.getpid(), host, port)  # a child has none of its parent's threads
    under_way = _under_way.setdefault(what, asked)
    if under_way is asked:
        threading.Thread(target=_look_up, args=(what, asked), name="ratelimit_mw name", daemon=True).start()
    return under_way


def _look_up(what: _LookUp, asked: Future[list[Way]]) -> None:
    try:
        found = _found(*what[1:])
    except Exception as error:
        del _under_way[what]
        asked.set_exception(error)
    else:
        del _under_way[what]
        asked.set_result(found)


def _found(host: str, port: int, flags: int = 0) -> list[Way]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [Way(family, end) for family, _, _, _, end in found]
