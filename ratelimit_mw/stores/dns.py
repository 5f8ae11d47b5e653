"""Resolve the names of servers without blocking the caller. Callers that wait for one name share one lookup."""

import socket
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from .background import run_once


class ResolvedAddress(NamedTuple):
    """One address of a server, as ``socket.connect`` takes it."""

    family: int
    end: Any


def resolve(host: str, port: int) -> Future[list[ResolvedAddress]]:
    """Return the addresses of a host. The future is done at once when the host is an IP address."""
    done: Future[list[ResolvedAddress]] = Future()
    try:
        done.set_result(_addresses(host, port, socket.AI_NUMERICHOST))
    except OSError:  # the host is a name
        return run_once(("resolve", host, port), partial(_addresses, host, port))
    return done


def _addresses(host: str, port: int, flags: int = 0) -> list[ResolvedAddress]:
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [ResolvedAddress(family, end) for family, _, _, _, end in addresses]
