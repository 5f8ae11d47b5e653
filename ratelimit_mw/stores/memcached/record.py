"""The state of one key in Memcached during one attempt: one packed value, written by compare-and-swap. No I/O."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from ...algorithms.limit import Limit
from ...clock import Clock
from ...decision import Decision, Hit
from ...errors import StateError
from ...receipt import Correction
from ..unmade import Leave
from .client.protocol import EXPIRED, STORED, KeyCommands, KeyReply, ProtocolError, StoredValue, swap
from .client.servers import Rendezvous
from .keys import KeyNames, expiry

MAX_ENTRIES: Final = 1_000  # entries of one log: 16 kB


class StepContext(NamedTuple):
    """The parts of the store that a call needs. ``due`` and ``timeout`` are in seconds of ``time``."""

    rendezvous: Rendezvous
    names: KeyNames
    clock: Clock
    generations: MutableMapping[bytes, bytes]
    time: Callable[[], float]
    due: float
    timeout: float
    leave: Leave


class Record:
    """One key during one attempt. Here its state is one value, in the format of the algorithm.

    The names in ``missing`` are read and passed to ``load`` until it ``is_loaded``. Then ``state`` is good enough to
    decide with, and ``ambiguous`` has the names that exact times need.
    """

    has_counters: ClassVar[bool] = False  # a write that did not succeed is counted all the same

    def __init__(self, context: StepContext, limit: Limit, key: str, token: bytes, now: int, is_explicit: bool) -> None:
        self.limit = limit
        self.key = key
        self.names = context.names
        self.server = context.rendezvous.server_of(token)
        self.token = token
        self.now = now
        self.is_explicit = is_explicit
        self.state: Any = None
        self.is_loaded = False
        self._stored: StoredValue | None = None

    def missing(self, changes: Sequence[Correction] | None = None) -> Sequence[bytes]:
        """Return the names to read before a decision, or before corrections."""
        return (self.names.state(self.token),)

    def ambiguous(self, decisions: Sequence[Decision]) -> Sequence[bytes]:
        """Return the names to read before the times of rejections and peeks are exact."""
        return ()

    def load(self, values: Mapping[bytes, StoredValue]) -> None:
        """Take the values of the names that were asked for last."""
        self.is_loaded = True
        self._stored = values.get(self.names.state(self.token))
        if self._stored is not None:
            try:
                self.state = self.limit.algorithm.load(self._stored.value)
            except Exception as error:
                shown = self._stored.value[:40]
                raise ProtocolError(f"a value that is no state of {self.limit.algorithm.name}: {shown!r}") from error

    def consume(self, state: Any, decisions: Sequence[Decision]) -> KeyCommands:
        """Return the commands for the state after these decisions."""
        return self._write(state, decisions[-1].reset_us)

    def correct(self, changes: Sequence[Correction]) -> KeyCommands | None:
        """Return the commands for corrections in their order; None when there is nothing to write."""
        state = self.state
        for change in changes:
            state = change.apply_to(state, self.now)
        if state is self.state:
            return None
        return self._write(state, self.limit.decide(state, self.now, 0)[1].reset_us)

    def _write(self, state: Any, reset_us: int) -> KeyCommands:
        value, expires = (
            (b"", EXPIRED) if state is None else (self.limit.algorithm.dump(state), expiry(reset_us, self.is_explicit))
        )
        return KeyCommands(self.server, (swap(self.names.state(self.token), value, expires, self._stored),))

    def succeeded(self, reply: KeyReply) -> bool:
        """Return whether no other client was faster."""
        return reply.lines[-1] == STORED


def load(record: Record, reply: KeyReply) -> None:
    """Load a reply; ``StateError`` for a value that is no state."""
    try:
        record.load(reply.values)
    except ProtocolError as error:
        raise StateError(f"Memcached replied: {error}", [record.key]) from error


def state_error(hits: Sequence[Hit], states: Sequence[Any], now: int, error: Exception) -> StateError:
    """Name the keys whose states have the form of a state, but no possible numbers."""
    keys = []
    for hit, state in zip(hits, states, strict=True):
        try:
            hit.limit.decide(state, now, hit.cost)
        except (ValueError, ArithmeticError):
            keys.append(hit.key)
    return StateError(f"Memcached replied: a value that is no state: {error}", keys)
