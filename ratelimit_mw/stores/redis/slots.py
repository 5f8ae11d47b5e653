"""Which server of a cluster has a slot, and the way of a call through it. No connections here.

Nothing is sent twice, and nobody sleeps while a cluster reorganises itself: a call has its time budget.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Final, NamedTuple

from hiredis import ReplyError

from ...errors import StoreError

__all__ = ["Journey", "Leg", "Place", "Slots", "by_slot", "journey", "learning", "slot_of"]

Place = tuple[str, int]
"""Host and port of a server."""

_REDIRECTIONS: Final = 5
_SLOTS: Final = 16384


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
        self._owners: dict[int, Place] = {}
        self.stale = True

    def owner(self, slot: int) -> Place:
        try:
            return self._owners[slot]
        except KeyError:
            raise StoreError(f"Redis: no server of the cluster is known to have slot {slot}") from None

    def places(self) -> list[Place]:
        """Whom to ask for the map: those that are in it, then those of the address."""
        return list(dict.fromkeys([*self._owners.values(), *self._seeds]))

    def learn(self, reply: Iterable[Any], asked: Place) -> None:
        """Read what CLUSTER SLOTS has said: first slot, last slot, primary (host, port, ...), replicas."""
        owners: dict[int, Place] = {}
        for first, last, (host, port, *_), *_ in reply:
            # A server that does not know its own address leaves it out: it is the one that was asked.
            place = ((host or b"").decode() or asked[0], int(port))
            owners.update(dict.fromkeys(range(first, last + 1), place))
        self._owners = owners
        self.stale = False

    def redirected(self, error: ReplyError, leg: Leg, slot: int) -> Leg:
        """Where a call has to go instead; the error itself when it says nothing about that."""
        kind, _, rest = str(error).partition(" ")
        if kind not in ("MOVED", "ASK"):
            self.stale = self.stale or kind == "CLUSTERDOWN"
            raise error
        host, _, port = rest.rpartition(" ")[2].rpartition(":")
        place = (host or leg.place[0], int(port))
        if kind == "MOVED":
            self._owners[slot] = place
            self.stale = True  # one slot has moved, so others may have
        return Leg(place, asking=kind == "ASK")


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
            slots.stale = True
            raise
    raise StoreError("Redis: the servers of the cluster point to each other")


def learning(slots: Slots) -> Journey:
    """Ask one server after another for the map; without any answer the old one has to do."""
    for place in slots.places():
        try:
            slots.learn((yield Leg(place, tries=True)), place)
            return
        except Exception:  # noqa: S112 - the next one may know
            continue


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
