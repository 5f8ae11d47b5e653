"""``LeaseTable``: the leases of this process, by key. It makes no calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ...decision import Charge, Correction, Decision, Hit, Limit

MAX_KEYS: Final = 10_000
_LEASES_PER_PERIOD: Final = 20
_LAPSED: Final = -(1 << 62)  # ``unused`` of a share that the store no longer counts


class Lease:
    """The share of one key. Until ``busy_until`` no other share of the key is taken: the store has not replied yet."""

    __slots__ = ("busy_until", "decision", "ends_at", "hit", "next_share", "taken_at", "unused")

    decision: Decision
    """The store's decision on the share. Until then ``unused`` is negative, so the lease covers no hit."""

    def __init__(self, hit: Hit, share: int, now: int) -> None:
        self.hit = hit._replace(cost=share)
        self.taken_at = now
        self.ends_at = self.busy_until = now + _life(hit.limit)
        self.unused = -1
        self.next_share = share

    def serve(self, hit: tuple[Limit, str, int], now: int) -> Decision | None:
        """Take the cost of a hit; None when the lease cannot. Two limits of different plans may count under one key."""
        if hit[2] > self.unused or now >= self.ends_at or hit[0] is not self.hit[0]:
            return None
        return self.consume(hit, now)

    def consume(self, hit: tuple[Limit, str, int], now: int) -> Decision:
        """Take the cost of a hit. The decision is derived from the store's decision."""
        self.unused -= hit[2]
        return self.look(hit, now)

    def look(self, hit: tuple[Limit, str, int], now: int) -> Decision:
        """Return the decision on a hit for the current state of the lease."""
        counted = self.decision
        rest, reset = counted.remaining + self.unused, counted.reset_us - now + self.taken_at
        decision = Decision(True, rest if rest > 0 else 0, 0, reset if reset > 0 else 0, counted.at_us)
        decision.hit = hit
        return decision


class SeenKeys:
    """The last hit of each key. Bounded."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def is_busy(self, key: str, now: int, span: int) -> bool:
        """Record a hit. Return True when the last one of its key was at most ``span`` ago."""
        last_seen = self._seen.get(key)
        if len(self._seen) >= MAX_KEYS:
            self._seen.clear()
        self._seen[key] = now
        return last_seen is not None and now - last_seen <= span


class LeaseTable:
    """The leases of this process, and the shares to take. Bounded. The caller holds a lock."""

    def __init__(self) -> None:
        self.by_key: dict[str, Lease] = {}
        self._by_life: dict[int, dict[str, Lease]] = {}  # leases of one life end in the order in which they began
        self._seen = SeenKeys()
        self._ended: list[Lease] = []  # no longer in the table, with a part to return

    def take_share(self, hit: Hit, now: int) -> Lease | None:
        """Add the lease whose share takes the place of a hit. None when such a share would save no call."""
        share = self._share(hit, now)
        if share <= max(1, hit.cost):
            return None
        lease = Lease(hit, share, now)
        self._put(lease)
        return lease

    def begin(self, lease: Lease, decision: Decision, now: int) -> None:
        """Fill a lease: the store has counted its share."""
        lease.unused, lease.decision = lease.hit.cost, decision
        current = self.by_key.get(lease.hit.key)
        if current is None:  # the call took longer than the lease's life
            self._put(lease)
        elif current is not lease:
            self._ended.append(lease)

    def put_back(self, lease: Lease, hit: Hit) -> None:
        """Put the cost of a hit back into the lease that it was taken from."""
        lease.unused += hit.cost
        if self.by_key.get(hit.key) is not lease:
            self._ended.append(lease)

    def returns(self, now: int, most: int) -> list[Correction]:
        """Build the corrections that return replaced leases and up to ``most`` leases that have ended."""
        ended, self._ended = self._ended, []
        for leases in self._by_life.values():
            while leases and len(ended) < most and (lease := next(iter(leases.values()))).ends_at <= now:
                self._pop(lease.hit.key)
                ended.append(lease)
        return _corrections(ended)

    def return_all(self) -> list[Correction]:
        """Empty the table. Build the corrections that return all leases."""
        returns = _corrections([*self._ended, *self.by_key.values()])
        self.by_key, self._by_life, self._ended = {}, {}, []
        return returns

    def forget(self, keys: Iterable[str]) -> None:
        """Drop leases without returning them: after a reset the store no longer counts them."""
        for key in keys:
            if lease := self._pop(key):
                lease.unused = _LAPSED

    def _put(self, lease: Lease) -> None:
        """Add a lease, which replaces the previous lease of its key. A full table drops its oldest lease."""
        key = lease.hit.key
        replaced = [self._pop(key)]
        if len(self.by_key) >= MAX_KEYS:
            replaced.append(self._pop(next(iter(self.by_key))))
        self._ended += filter(None, replaced)
        self.by_key[key] = self._by_life.setdefault(_life(lease.hit.limit), {})[key] = lease

    def _pop(self, key: str) -> Lease | None:
        lease = self.by_key.pop(key, None)
        if lease is not None:
            del self._by_life[_life(lease.hit.limit)][key]
        return lease

    def _share(self, hit: Hit, now: int) -> int:
        """Return the share to take: 0 if the key is not busy, a call is under way, or its lease has another limit."""
        if not (hit.limit.lease and self._seen.is_busy(hit.key, now, _life(hit.limit))):
            return 0
        last = self.by_key.get(hit.key)
        if last is None or last.ends_at <= now:
            return hit.limit.lease
        return min(last.next_share, hit.limit.lease) if last.busy_until <= now and last.hit.limit is hit.limit else 0


def _life(limit: Limit) -> int:
    return max(1, limit.quota.period_us // _LEASES_PER_PERIOD)


def _corrections(leases: Iterable[Lease]) -> list[Correction]:
    """Build the corrections that return the unused parts of leases. Each part is returned once."""
    corrections = []
    for lease in leases:
        if lease.unused > 0:
            limit, key, share = lease.hit
            corrections.append(Correction(limit, key, lease.unused, Charge(lease.decision.at_us, share)))
            lease.unused = 0
    return corrections
