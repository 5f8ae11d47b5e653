"""Which server has which slot, as far as it is known. This file opens no connections.

Without a cluster there is one slot. It is at the server of the URL, or at the primary that the sentinels name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from redis import ResponseError
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS

from ...errors import StoreError
from ..servers import Server
from .address import Address
from .errors import error_code

NO_SERVER: Final = Server("", 0)
"""The owner of a slot that no known server has."""
_DOWN: Final = {"s_down", "o_down", "disconnected"}


class SlotMap:
    """Where the slots are. For a cluster and for Sentinel it starts empty, with the servers of the URL."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._seeds = list(address.hosts)
        self.is_fixed = not (address.cluster or address.service)
        self.primaries: list[Server] = self._seeds if self.is_fixed else []
        self.owners: list[Server] = [*self.primaries] or [NO_SERVER] * (SLOTS if address.cluster else 1)
        """The server of each slot."""
        self._replicas: list[Server] = []
        self._silent: set[Server] = set()
        self.is_stale = not self.is_fixed
        service = address.service.encode()
        self.question = [b"SENTINEL", b"MASTER", service] if service else [b"CLUSTER", b"SLOTS"]
        """The command whose reply is the map."""

    @property
    def is_known(self) -> bool:
        return bool(self.primaries)

    def sources(self) -> list[Server]:
        """Return the servers to ask for the map: those in it, then those of the URL; silent servers last."""
        known = self._seeds if self._address.service else [*self.primaries, *self._seeds, *self._replicas]
        return sorted(dict.fromkeys(known), key=self._silent.__contains__)

    def servers(self) -> set[Server]:
        """Return the servers in the map."""
        return {*self.primaries, *self._replicas}

    def load(self, reply: Any, source: Server) -> None:
        """Take over the reply of a server to the question."""
        if self._address.service:
            self.owners[0] = primary = self._address.locate(*primary_in(reply))
            self.primaries = [primary]
            self._seeds.sort(key=source.__eq__)  # the next search starts with another sentinel
        else:
            self._load_slots(reply, source)
        self._silent = self._silent.intersection(self.sources()) - {source}

    def _load_slots(self, reply: Iterable[Any], source: Server) -> None:
        """Load a reply to CLUSTER SLOTS: first slot, last slot, primary (host, port, ...), replicas."""
        owners = [NO_SERVER] * SLOTS
        primaries: dict[Server, None] = {}
        replicas: dict[Server, None] = {}
        for first, last, *servers in reply:
            location, *others = (
                self._location(host.decode() if host else "", port, source) for host, port, *_ in servers
            )
            owners[first : last + 1] = [location] * (last + 1 - first)
            primaries[location] = None
            replicas.update(dict.fromkeys(others))
        if not primaries:
            raise StoreError("Redis: the server has left the cluster")
        self.owners[:], self.primaries, self._replicas = owners, list(primaries), list(replicas)

    def forget_primary(self) -> None:
        """Record that no sentinel names a primary."""
        self.owners[0], self.primaries = NO_SERVER, []

    def mark_silent(self, location: Server) -> None:
        """Record that another server may have the slots of this one by now."""
        self._silent.add(location)
        self.is_stale = not self.is_fixed

    def redirect(self, error: ResponseError, source: Server, slot: int) -> Server:
        """Return the server that a MOVED or ASK of ``source`` names."""
        host, _, port = str(error).rpartition(" ")[2].rpartition(":")
        location = self._location(host, port, source)
        if error_code(error) == "MOVED":
            self.owners[slot] = location
            self.is_stale = True  # other slots may have moved too
        return location

    def _location(self, host: str, port: int | str, source: Server) -> Server:
        """Return where to reach a server that ``source`` names. A server may have to leave out the host."""
        return self._address.locate(host if host and host != "?" else source[0], int(port))

    def key_at(self, location: Server, slot: Callable[[str], int]) -> str | None:
        """Return a key on a server, however few slots it has; None if it can have no key. ``slot`` is that of a key.

        By the arithmetic of the checksum, 14 binary digits after any text have each slot once. Only a prefix with
        ``{braces}`` has one slot for all.
        """
        keys = map("ping{:014b}".format, range(SLOTS if slot("ping0") != slot("ping1") else 1))
        return next((key for key in keys if self.owners[slot(key)] == location), None)


def primary_in(reply: Any) -> Server:
    """Return the location in a reply to SENTINEL MASTER: names and values in turn."""
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    flags = fields[b"flags"].decode()
    if _DOWN & set(flags.split(",")):
        raise StoreError(f"the primary is {flags}")
    return Server(fields[b"ip"].decode(), int(fields[b"port"]))
