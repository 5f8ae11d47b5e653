"""The slots of keys, and the map of which server has which slot. This file opens no connection."""

from binascii import crc_hqx
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from redis import ResponseError

from ....errors import StoreError
from .errors import error_code

Location = tuple[str, int]
"""Host and port of a server."""

_SLOTS: Final = 16384
_SAMPLES: Final = 1024


class SlotMap:
    """Which server has which slot, as far as it is known."""

    def __init__(self, seeds: Sequence[Location]) -> None:
        self._seeds = list(seeds)
        self._owners: list[Location | None] = [None] * _SLOTS
        self._primaries: list[Location] = []
        self._silent: set[Location] = set()
        self.is_stale = True
        self.version = 0
        """How often the map was read."""

    def owner(self, slot: int) -> Location:
        location = self._owners[slot]
        if location is None:
            self.is_stale = True
            raise StoreError(f"Redis: no known server of the cluster has slot {slot}")
        return location

    def locations(self) -> list[Location]:
        """The servers to ask for the map: those in it, then those of the URL; silent servers last."""
        return sorted(dict.fromkeys([*self._primaries, *self._seeds]), key=self._silent.__contains__)

    def claim_refresh(self) -> bool:
        """Whether the caller should read the map. One of several callers should, or all while nothing is known."""
        if self.version and not self.is_stale:
            return False
        self.is_stale = False
        return True

    def load(self, reply: Iterable[Any], source: Location) -> None:
        """Take over a reply to CLUSTER SLOTS: first slot, last slot, primary (host, port, ...), replicas."""
        owners: list[Location | None] = [None] * _SLOTS
        primaries: dict[Location, None] = {}
        for first, last, (host, port, *_), *_ in reply:
            # A server that does not know its own address leaves it out.
            location = (host.decode() if host and host != b"?" else source[0], int(port))
            owners[first : last + 1] = [location] * (last + 1 - first)
            primaries[location] = None
        self._owners, self._primaries = owners, list(primaries)
        self.version += 1
        self._silent = self._silent.intersection(self.locations()) - {source}

    def mark_silent(self, location: Location) -> None:
        """Another server may have the slots of this one by now."""
        self._silent.add(location)
        self.is_stale = True

    def redirect(self, error: ResponseError, source: Location, slot: int) -> tuple[Location, bool]:
        """The server after a MOVED or ASK of ``source``, and whether it needs ASKING. Raises any other error."""
        code = error_code(error)
        if code not in ("MOVED", "ASK"):
            self.is_stale = self.is_stale or code == "CLUSTERDOWN"
            raise error
        host, _, port = str(error).rpartition(" ")[2].rpartition(":")
        location = (host if host and host != "?" else source[0], int(port))
        if code == "MOVED":
            self._owners[slot] = location
            self.is_stale = True  # other slots may have moved too
        return location, code == "ASK"

    def samples(self, slot: Callable[[str], int]) -> list[str]:
        """Of the keys ``ping0``, ``ping1``, ... one for each primary that has a fair share of the slots."""
        keys: dict[Location | None, str] = {}
        for i in range(_SAMPLES):
            keys.setdefault(self._owners[slot(f"ping{i}")], f"ping{i}")
            if len(keys) == len(self._primaries):
                break
        return list(keys.values())


def slot_of(name: bytes) -> int:
    """The slot of a key, or of the text in its first braces.

    >>> slot_of(b"123456789") == 0x31C3, slot_of(b"{shop}:a") == slot_of(b"shop")
    (True, True)
    """
    _, _, rest = name.partition(b"{")
    inside, closed, _ = rest.partition(b"}")
    return crc_hqx(inside if inside and closed else name, 0) % _SLOTS
