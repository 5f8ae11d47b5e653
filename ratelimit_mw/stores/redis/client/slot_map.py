"""The map of a cluster: which server has which slot, as far as it is known. This file opens no connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from redis import ResponseError

from ....errors import StoreError
from ..address import Address
from .errors import error_code

Location = tuple[str, int]
"""Host and port of a server."""

SLOTS: Final = 16384


class SlotMap:
    """Where the slots are. It starts empty, with the servers of the URL."""

    def __init__(self, address: Address) -> None:
        self._seeds = list(address.hosts)
        self._locate = address.locate
        self.owners: list[Location | None] = [None] * SLOTS
        """The server of each slot."""
        self.primaries: list[Location] = []
        self._replicas: list[Location] = []
        self._silent: set[Location] = set()
        self.is_stale = True
        self.version = 0
        """How often the map was read."""
        self._samples: list[str] = []
        self._sampled_version = 0

    def locations(self) -> list[Location]:
        """Return the servers to ask for the map: those in it, then those of the URL; silent servers last."""
        known = dict.fromkeys([*self.primaries, *self._seeds, *self._replicas])
        return sorted(known, key=self._silent.__contains__)

    def other_than(self, location: Location) -> Location | None:
        """Return a primary other than this one, or None if all others are silent."""
        return next((one for one in self.primaries if one != location and one not in self._silent), None)

    def load(self, reply: Iterable[Any], source: Location) -> None:
        """Take over a reply to CLUSTER SLOTS: first slot, last slot, primary (host, port, ...), replicas."""
        owners: list[Location | None] = [None] * SLOTS
        primaries: dict[Location, Location] = {}  # reachable address: announced address
        replicas: dict[Location, None] = {}
        for first, last, *servers in reply:
            announced = [(host.decode() if host else "", port) for host, port, *_ in servers]
            location, *others = (self._location(*server, source) for server in announced)
            owners[first : last + 1] = [location] * (last + 1 - first)
            if (other := primaries.setdefault(location, announced[0])) != announced[0]:
                both = " and ".join(repr(location_text(each)) for each in sorted((other, announced[0])))
                raise StoreError(f"remap: {both} both go to {location_text(location)}. Write a pair for each server")
            replicas.update(dict.fromkeys(others))
        if not primaries:
            raise StoreError("Redis: the server has left the cluster")
        self.owners[:], self.primaries, self._replicas = owners, list(primaries), list(replicas)
        self.version += 1
        self._silent = self._silent.intersection(self.locations()) - {source}

    def mark_silent(self, location: Location) -> None:
        """Record that another server may have the slots of this one by now."""
        self._silent.add(location)
        self.is_stale = True

    def redirect(self, error: ResponseError, source: Location, slot: int) -> Location:
        """Return the server that a MOVED or ASK of ``source`` names."""
        host, _, port = str(error).rpartition(" ")[2].rpartition(":")
        location = self._location(host, port, source)
        if error_code(error) == "MOVED":
            self.owners[slot] = location
            self.is_stale = True  # other slots may have moved too
        return location

    def _location(self, host: str, port: int | str, source: Location) -> Location:
        """Return where to reach a server that ``source`` names. A server may have to leave out the host."""
        return self._locate(host if host and host != "?" else source[0], int(port))

    def samples(self, slot: Callable[[str], int]) -> list[str]:
        """Return a key for each primary that can have keys, however few slots it has. ``slot`` is that of a key.

        By the arithmetic of the checksum, 14 binary digits after any text have each slot once. Only a prefix with
        ``{braces}`` has one slot for all.
        """
        if self._sampled_version != self.version:
            keys: dict[Location | None, str] = {}
            for key in map("ping{:014b}".format, range(SLOTS if slot("ping0") != slot("ping1") else 1)):
                keys.setdefault(self.owners[slot(key)], key)
                if len(keys) == len(self.primaries):
                    break
            self._samples, self._sampled_version = list(keys.values()), self.version
        return self._samples


def location_text(location: Location) -> str:
    host, port = location
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
