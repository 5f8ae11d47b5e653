"""Which server of a cluster has a slot, and the way of a call through it. No connections here.

Nothing is sent twice, and nobody sleeps while a cluster reorganises itself: a call has its time budget.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, NamedTuple

from hiredis import ReplyError

from ....errors import StoreError

__all__ = ["Journey", "Leg", "Place", "Slots", "by_slot", "journey", "learning", "slot_of"]

Place = tuple[str, int]
"""Host and port of a server."""

_REDIRECTIONS: Final = 5
_SLOTS: Final = 16384
_SAMPLES: Final = 1024


class Leg(NamedTuple):
    """One thing to do on the way: send the call to a place. When it only ``tries``, there are others to ask."""

    place: Place
    asking: bool = False
    tries: bool = False


Journey = Generator[Leg, Any, Any]


class Slots:
    """The map of a cluster, as far as it is known."""

    def __init__(self, seeds: Sequence[Place]) -> None:
        self._seeds = list(seeds)
        self._owners: list[Place | None] = [None] * _SLOTS
        self._primaries: list[Place] = []
        self._suspects: set[Place] = set()
        self.stale = True
        self.version = 0
        """How often the map was learnt."""

    def owner(self, slot: int) -> Place:
        place = self._owners[slot]
        if place is None:
            self.stale = True
            raise StoreError(f"Redis: no server of the cluster is known to have slot {slot}")
        return place

    def places(self) -> list[Place]:
        """Whom to ask for the map: those that are in it, then those of the address; last those that did not answer."""
        return sorted(dict.fromkeys([*self._primaries, *self._seeds]), key=self._suspects.__contains__)

    def takes_learning(self) -> bool:
        """Whether the caller should learn the map; of several callers one, unless nothing is known yet."""
        if self.version and not self.stale:
            return False
        self.stale = False
        return True

    def learn(self, reply: Iterable[Any], asked: Place) -> None:
        """Read what CLUSTER SLOTS has said: first slot, last slot, primary (host, port, ...), replicas."""
        owners: list[Place | None] = [None] * _SLOTS
        primaries: dict[Place, None] = {}
        for first, last, (host, port, *_), *_ in reply:
            # A server that does not know its own address leaves it out: it is the one that was asked.
            place = (host.decode() if host and host != b"?" else asked[0], int(port))
            owners[first : last + 1] = [place] * (last + 1 - first)
            primaries[place] = None
        self._owners, self._primaries = owners, list(primaries)
        self.version += 1
        self._suspects = self._suspects.intersection(self.places()) - {asked}

    def failed(self, place: Place) -> None:
        """A server did not answer: another one may have its slots by now."""
        self._suspects.add(place)
        self.stale = True

    def redirected(self, error: ReplyError, leg: Leg, slot: int) -> Leg:
        """Where a call has to go instead; the error itself when it says nothing about that."""
        kind, _, rest = str(error).partition(" ")
        if kind not in ("MOVED", "ASK"):
            self.stale = self.stale or kind == "CLUSTERDOWN"
            raise error
        host, _, port = rest.rpartition(" ")[2].rpartition(":")
        place = (host if host and host != "?" else leg.place[0], int(port))
        if kind == "MOVED":
            self._owners[slot] = place
            self.stale = True  # one slot has moved, so others may have
        return Leg(place, asking=kind == "ASK")

    def samples(self, name: Callable[[int], bytes]) -> list[bytes]:
        """Of the keys called ``name(0)``, ``name(1)``, ... one for each primary that has a fair share of the slots."""
        found: dict[Place | None, bytes] = {}
        for i in range(_SAMPLES):
            key = name(i)
            found.setdefault(self._owners[slot_of(key)], key)
            if len(found) == len(self._primaries):
                break
        return list(found.values())


def journey(slots: Slots, slot: int) -> Journey:
    """The way of one call: yields legs, is sent their replies or thrown their errors, returns the reply.

    It is sent again only to where a server has pointed, which has not carried it out.
    """
    leg = Leg(slots.owner(slot))
    for _ in range(_REDIRECTIONS):
        try:
            return (yield leg)
        except ReplyError as error:
            leg = slots.redirected(error, leg, slot)
        except Exception:
            slots.failed(leg.place)
            raise
    raise StoreError("Redis: the servers of the cluster point to each other")


def learning(slots: Slots) -> Journey:
    """Ask one server after another for the map; without any answer the old one has to do, if there is one."""
    failed: Exception | None = None
    for place in slots.places():
        try:
            slots.learn((yield Leg(place, tries=True)), place)
            return
        except Exception as error:
            slots.failed(place)
            failed = error
        except GeneratorExit:  # whoever was to learn it is gone
            slots.stale = True
            raise
    if failed is not None and not slots.version:
        raise failed


def slot_of(name: bytes) -> int:
    """The slot of a key, or of what stands in its first braces.

    >>> slot_of(b"123456789") == 0x31C3, slot_of(b"{shop}:a") == slot_of(b"shop")
    (True, True)
    """
    _, _, rest = name.partition(b"{")
    inside, closed, _ = rest.partition(b"}")
    return crc_hqx(inside if inside and closed else name, 0) % _SLOTS


def by_slot(names: Iterable[bytes]) -> dict[int, list[bytes]]:
    """Keys by their slots."""
    found: dict[int, list[bytes]] = {}
    for name in names:
        found.setdefault(slot_of(name), []).append(name)
    return found
