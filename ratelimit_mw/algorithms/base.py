"""What an algorithm is: pure whole-number arithmetic over one state. No clock, no key, no store, no HTTP.

Times are whole microseconds. A state is ``None`` (fresh) or whatever the algorithm makes of it; it is never
changed in place, so a store may throw away a new state that it decides not to keep.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from ..decision import Charge, Decision
from ..errors import ConfigError
from ..quota import Quota

__all__ = ["Algorithm", "muldiv"]


class Algorithm(ABC):
    """One quota under one algorithm. Subclass it, give it a ``name`` and register it to add your own."""

    name: ClassVar[str]
    takes_burst: ClassVar[bool] = False
    delays: ClassVar[bool] = False

    def __init__(self, quota: Quota) -> None:
        if quota.burst is not None and not self.takes_burst:
            raise ConfigError(
                f"{self.name} has no burst, but the quota is {str(quota)!r};"
                " drop the burst, or use token-bucket, leaky-bucket or gcra"
            )
        self.amount = quota.amount
        self.period = quota.period_us
        self.limit = self.amount if quota.burst is None else quota.burst

    @property
    @abstractmethod
    def lifetime(self) -> int:
        """Microseconds after its last change by which any state is as good as fresh."""

    @property
    def variant(self) -> str:
        """What besides period and name makes states incompatible; part of every key."""
        return ""

    @abstractmethod
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        """Decide ``cost`` at ``now``: the state to keep, and the decision.

        When rejected, and for a cost of 0, the state returned is the very object that was given.
        """

    @abstractmethod
    def charge(self, state: Any, now: int, cost: int) -> Any:
        """The state after ``cost`` was consumed without asking, even beyond the limit."""

    @abstractmethod
    def give_back(self, state: Any, now: int, consumed: Charge, cost: int) -> Any:
        """The state after ``cost`` of what was ``consumed`` is undone where it was counted."""

    def dump(self, state: Any) -> bytes:
        """A state other than None as bytes: here a tuple of whole numbers, ``b"1:2:3"``."""
        text: bytes = (b"%d" + b":%d" * (len(state) - 1)) % tuple(state)
        return text

    def load(self, data: bytes) -> Any:
        """The inverse of ``dump``; ``ValueError`` for bytes that have not its form."""
        return tuple(map(int, data.split(b":")))


def muldiv(a: int, b: int, c: int) -> tuple[int, int]:
    """Floor and remainder of ``a * b / c``, exact at any size: ``muldiv(7, 3, 2)`` is ``(10, 1)``."""
    return divmod(a * b, c)
