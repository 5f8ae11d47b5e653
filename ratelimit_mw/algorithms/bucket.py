"""token-bucket, leaky-bucket and gcra: one function with three names.

State: (time, consumed, part, time of the first hit). The cost consumed is ``consumed + part/P`` and drains at ``N/P``.
The state is exact and does not depend on ``N``, so the consumed cost is kept when an amount changes.

* token bucket: starts full with ``B`` and refills at ``N/P``; it holds ``B - consumed`` tokens.
* leaky bucket: ``consumed`` is the level. In queue mode a hit waits until the level before it has drained.
* GCRA (ITU-T I.371): the theoretical arrival time is ``time + consumed * P/N``.
"""

from ..decision import Algorithm, Charge, Decision

State = tuple[int, int, int, int] | None


class Bucket(Algorithm):
    """Allows a cost ``c`` when the consumed cost that has not drained, plus ``c``, is at most ``B``."""

    takes_burst = True
    fields = 4

    @property
    def lifetime(self) -> int:
        return -(-self.limit * self.period // self.amount)

    def decide(self, state: State, now: int, cost: int) -> tuple[State, Decision]:
        at, consumed, part, began = (now, 0, 0, now) if state is None else self._drain(state, now)
        room = self.limit - consumed - (part > 0)
        if cost == 0:
            return state, Decision(True, max(0, room), 0, at - now + self._drains_in(consumed, part), at)
        if cost > room:
            retry = None if cost > self.limit else at - now + self._drains_in(consumed + cost - self.limit, part)
            return state, Decision(False, max(0, room), retry, at - now + self._drains_in(consumed, part), at)
        delay = self._drains_in(consumed, part) if self.delays else 0
        reset = at - now - (-((consumed + cost) * self.period + part) // self.amount)  # ``_drains_in``
        return (at, consumed + cost, part, began), Decision(True, room - cost, 0, reset, at, delay)

    def _drains_in(self, consumed: int, part: int) -> int:
        """Microseconds, rounded up, until ``consumed + part/P`` has drained."""
        return -(-(consumed * self.period + part) // self.amount)

    def _drain(self, state: tuple[int, int, int, int], now: int) -> tuple[int, int, int, int]:
        """Return the state as of ``now``, or as of its own time when that is later."""
        at, consumed, part, began = state
        if now <= at:
            return state
        drained, part = divmod(part - (now - at) * self.amount, self.period)
        consumed += drained  # which is at most 0
        return (now, consumed, part, began) if consumed >= 0 else (now, 0, 0, began)

    def charge(self, state: State, now: int, cost: int) -> State:
        at, consumed, part, began = (now, 0, 0, now) if state is None else self._drain(state, now)
        return at, consumed + cost, part, began

    def refund(self, state: State, now: int, consumed: Charge, cost: int) -> State:
        if state is None or consumed.at_us < state[3]:
            return state
        # The part of the cost that has drained since the hit cannot be refunded.
        drained = self._drain(state, now)
        return self._lower(drained, cost * self.period - max(0, drained[0] - consumed.at_us) * self.amount)

    def _lower(self, state: tuple[int, int, int, int], by: int) -> State:
        at, level, part, began = state
        left = level * self.period + part - max(0, by)
        return (at, *divmod(left, self.period), began) if left > 0 else None


class TokenBucket(Bucket):
    """Continuous refill."""

    name = "token-bucket"


class Gcra(Bucket):
    """The generic cell rate algorithm: ``max(t, tat) + c*T - B*T <= t``, with ``T = P/N``."""

    name = "gcra"


class LeakyBucket(Bucket):
    """Allows a cost ``c`` when ``level + c <= B``."""

    name = "leaky-bucket"


class LeakyBucketQueue(LeakyBucket):
    """A queue of size ``B`` served at ``N/P``. An allowed hit waits until the level before it has drained."""

    delays = True
    variant = "queue"

    def refund(self, state: State, now: int, consumed: Charge, cost: int) -> State:
        if state is None or consumed.at_us < state[3] or not self._is_last(state, consumed):
            return state
        return self._lower(self._drain(state, now), cost * self.period)

    def _is_last(self, state: tuple[int, int, int, int], consumed: Charge) -> bool:
        """Return whether no later departure depends on this hit: the queue ends where the hit ends.

        The ends are compared in units of 1/N microsecond. ``delay_us`` was rounded up, so the hit's end is known to
        less than N units. One more hit moves the end by P units, so it is not known when N is larger than P.
        """
        at, level, part, _ = state
        end = at * self.amount + level * self.period + part
        own = (consumed.at_us + consumed.delay_us) * self.amount + consumed.cost * self.period
        return self.amount <= self.period and 0 <= own - end < self.amount
