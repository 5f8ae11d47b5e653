"""What a key is to the flows: a cell that says what it must read, and how a change of it is written. No I/O.

Most states are one small packed value that is swapped when nobody else was faster. Counters of a tiered window and
chunks of a log have cells of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ...algorithms.limit import Limit
from ...decision import Correction, Decision
from .client.protocol import GONE, STORED, Ask, Found, Told, WireError, store
from .keys import Life, Names

__all__ = ["Cell", "PackedCell"]


class Cell(ABC):
    """One key at one moment, for one try.

    While ``wants`` names something, that is read and handed to ``take``. Then ``state`` is good enough to decide
    with, and ``vague`` names what a rejection or a look still needs to be exact. ``counts_anyway`` says that what lost
    its race is counted all the same, and has to be given back.
    """

    counts_anyway: ClassVar[bool] = False

    def __init__(self, limit: Limit, token: bytes, names: Names, now: int) -> None:
        self.limit = limit
        self.token = token
        self.names = names
        self.now = now

    @abstractmethod
    def wants(self) -> Sequence[bytes]:
        """What is to be read before anything can be decided."""

    @abstractmethod
    def take(self, values: Mapping[bytes, Found]) -> None:
        """What was read of what was named last; a name without a value was not there."""

    @property
    @abstractmethod
    def state(self) -> Any:
        """The state for ``decide``."""

    def vague(self, _decision: Decision, _cost: int) -> Sequence[bytes]:
        """What is to be read before a rejection, or a look, is exact."""
        return ()

    @abstractmethod
    def consume(self, kept: Any, decision: Decision, cost: int, life: Life) -> Ask:
        """How ``cost`` is written, whose decision it was and which state it is to leave."""

    def wants_for(self, _changes: Sequence[Correction]) -> Sequence[bytes]:
        """What is to be read before corrections can be made."""
        return self.wants()

    @abstractmethod
    def correct(self, changes: Sequence[Correction], life: Life) -> Ask | None:
        """How corrections are written, in their order; None when there is nothing to write."""

    @abstractmethod
    def won(self, told: Told) -> bool:
        """Whether what was consumed stands: nobody else was faster."""

    def corrected(self, told: Told) -> bool:
        """Whether what was corrected stands."""
        return self.won(told)


class PackedCell(Cell):
    """The whole state is one value, as ``dump`` makes it."""

    def __init__(self, limit: Limit, token: bytes, names: Names, now: int) -> None:
        super().__init__(limit, token, names, now)
        self._name = names.state(token)
        self._found: Found | None = None
        self._state: Any = None
        self._read = False

    def wants(self) -> Sequence[bytes]:
        return () if self._read else (self._name,)

    def take(self, values: Mapping[bytes, Found]) -> None:
        self._read = True
        self._found = values.get(self._name)
        if self._found is not None:
            self._state = loaded(self.limit, self._found.value)

    @property
    def state(self) -> Any:
        return self._state

    def consume(self, kept: Any, decision: Decision, cost: int, life: Life) -> Ask:
        return self._written(kept, life(decision.reset_us))

    def correct(self, changes: Sequence[Correction], life: Life) -> Ask | None:
        algorithm, state = self.limit.algorithm, self._state
        for _, _, cost, consumed in changes:
            if consumed is None:
                state = algorithm.charge(state, self.now, cost)
            else:
                state = algorithm.give_back(state, self.now, consumed, cost)
        if state is self._state:
            return None
        if state is None:
            return Ask(self.token, (store(self._name, b"", GONE, self._found),))
        return self._written(state, life(self.limit.decide(state, self.now, 0)[1].reset_us))

    def _written(self, state: Any, expiry: int) -> Ask:
        return Ask(self.token, (store(self._name, self.limit.algorithm.dump(state), expiry, self._found),))

    def won(self, told: Told) -> bool:
        return told.lines[-1] == STORED


def loaded(limit: Limit, data: bytes) -> Any:
    """A state from its bytes; whatever is wrong with them is the server's fault."""
    try:
        return limit.algorithm.load(data)
    except Exception as error:
        raise WireError(f"a value that is no state of {limit.algorithm.name}: {data[:40]!r}") from error
