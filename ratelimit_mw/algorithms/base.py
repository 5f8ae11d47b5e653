"""The base class of algorithms: pure whole-number arithmetic over one state. No clock, no key, no store, no HTTP.

Times are whole microseconds. A state is None (fresh) or an object of the algorithm. A state is never changed in place,
so a store may discard a new state.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from ..decision import Decision
from ..errors import ConfigError
from ..quota import Quota
from ..receipt import Charge


class Algorithm(ABC):
    """One quota under one algorithm. To add your own, subclass it, set ``name`` and call ``register``.

    Args:
        quota: The quota.

    Attributes:
        name: The name in rules.
        takes_burst: Whether a quota may have a burst.
        delays: Whether decisions have a delay.
        fields: How many numbers a state has, 0 for any. ``load`` checks it.
        amount: The amount of the quota (N in formulas).
        period: The period in microseconds (P in formulas).
        limit: The burst of the quota, or else its amount.
    """

    name: ClassVar[str]
    takes_burst: ClassVar[bool] = False
    delays: ClassVar[bool] = False
    fields: ClassVar[int] = 0

    def __init__(self, quota: Quota) -> None:
        if quota.burst is not None and not self.takes_burst:
            raise ConfigError(
                f"the algorithm has no burst; got {str(quota)!r}."
                " Remove the burst, or use token-bucket, leaky-bucket or gcra"
            )
        self.amount = quota.amount
        self.period = quota.period_us
        self.limit = self.amount if quota.burst is None else quota.burst

    @property
    @abstractmethod
    def lifetime(self) -> int:
        """Microseconds after its last change until a state is expired."""

    @property
    def variant(self) -> str:
        """The part of every key that separates states of one name that are not compatible."""
        return ""

    @abstractmethod
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        """Decide whether ``cost`` fits.

        Args:
            state: The state of the key.
            now: The time in microseconds.
            cost: The cost, a whole number. A cost of 0 is always allowed and changes nothing.

        Returns:
            The state to keep and the decision. After a rejection the state is the same object.
        """

    @abstractmethod
    def charge(self, state: Any, now: int, cost: int) -> Any:
        """Consume ``cost`` without a decision, even beyond the limit.

        Args:
            state: The state of the key.
            now: The time in microseconds.
            cost: The cost, a whole number.

        Returns:
            The new state.
        """

    @abstractmethod
    def refund(self, state: Any, now: int, consumed: Charge, cost: int) -> Any:
        """Refund a cost where it was counted. A charge from before the state began, such as before a reset, is void.

        Args:
            state: The state of the key.
            now: The time in microseconds.
            consumed: The charge: its time, cost and delay.
            cost: The part of the charge to refund, a whole number.

        Returns:
            The new state, or None if it is fresh.
        """

    def dump(self, state: Any) -> bytes:
        """Encode a state. This method encodes a tuple of whole numbers: ``b"1:2:3"``.

        Args:
            state: A state, never None.

        Returns:
            The bytes that a store keeps.
        """
        text: bytes = (b"%d" + b":%d" * (len(state) - 1)) % tuple(state)
        return text

    def load(self, data: bytes) -> Any:
        """Decode a state.

        Args:
            data: The bytes that a store has kept.

        Returns:
            The state.

        Raises:
            ValueError: ``dump`` cannot have returned these bytes.
        """
        state = tuple(map(int, data.split(b":")))
        if self.fields and len(state) != self.fields:
            raise ValueError(f"expected {self.fields} numbers, got {len(state)}")
        return state
