"""``RacingCall``: the hits of one request, and the attempts that lost a race with another client. No I/O.

A lost race of a shadow limit alone rejects nothing. The other limits of the request keep their decisions.
"""

from collections.abc import Container, Sequence
from typing import Final

from ...algorithms.limit import Limit
from ...algorithms.window_log import RejectionCountingLog, SlidingWindowLog
from ...decision import Decision, Hit, decide_all, reject_uncounted
from ...errors import ConfigError, StoreError
from ...forksafe import CHANCE
from .client.protocol import ProtocolError
from .record import MAX_ENTRIES, StepContext

DECIDING: Final = 0.7
"""The part of the time budget for attempts. The rest undoes the last one."""
LOGS: Final = (SlidingWindowLog, RejectionCountingLog)
_MAX_PAUSE: Final = 0.0005  # seconds
_RETRY: Final = 100_000  # Microseconds: the retry time of a call that lost all of its races.


class Races:
    """The lost races of a call. Another attempt is made while it can end within a part of the time budget.

    ``tokens`` are the keys at which a caller takes its turn: tasks before the first attempt, threads after a lost race.
    """

    growth = 4  # doublings of the pause, at most
    is_outrun = False  # it had no turn, while the server replied to other calls

    def __init__(self, context: StepContext, part: float, tokens: Sequence[bytes], lost: int = 0) -> None:
        self.tokens = tokens
        self.time = context.time
        self.due = context.due
        self.last = context.due - (1 - part) * context.timeout
        self.lost = lost
        self._longest = 0.0

    def lose(self, seconds: float) -> None:
        """Note a lost race that took ``seconds``. The next one may take as long."""
        self.lost += 1
        self._longest = max(self._longest, seconds)

    @property
    def pause(self) -> float:
        """Seconds until the next attempt, at random so that racing clients do not meet again."""
        return CHANCE.uniform(0, _MAX_PAUSE * 2 ** min(self.lost - 1, self.growth))

    @property
    def has_time(self) -> bool:
        return self.time() + self._longest < self.last


class RacingCall(Races):
    """The hits of one request, and their decisions in the last attempt."""

    growth = 0  # After a longer pause the loser loses again to the clients that do not wait.

    def __init__(self, context: StepContext, hits: Sequence[Hit], explicit_now: int | None) -> None:
        super().__init__(context, DECIDING, [context.names.token(hit.key) for hit in hits])
        self.hits = hits
        self.explicit_now = explicit_now
        self.decisions: list[Decision] = []
        self._kept: list[Decision] = []
        for hit in hits:
            check_entries(hit.limit)

    def keep_all_but(self, lost: Container[bytes]) -> None:
        """Keep the decisions if only shadow limits have lost a race. From now on the call decides those alone."""
        again = [pair for pair in zip(self.hits, self.tokens, strict=True) if pair[1] in lost]
        if all(hit.limit.shadow for hit, _ in again):
            self._kept = self._all_decisions()
            self.hits, self.tokens = [hit for hit, _ in again], [token for _, token in again]

    def _all_decisions(self) -> list[Decision]:
        newest = {id(decision.hit): decision for decision in self.decisions}
        return [newest.get(id(decision.hit), decision) for decision in self._kept] or self.decisions

    def result(self, is_decided: bool) -> list[Decision]:
        """Return the final decisions, or the rejection of a call that had no turn or lost all of its races."""
        if self._kept:
            return self._all_decisions()
        if is_decided or any(not each.allowed and not each.shadow for each in self.decisions):
            return self.decisions
        decisions = self.decisions or decide_all(self.hits, [None] * len(self.hits), self.explicit_now or 0)[0]
        reject_uncounted(decisions, _RETRY)
        return decisions


def check_entries(limit: Limit) -> None:
    """Raise ``ConfigError`` for a log with more entries than one value may have."""
    if limit.limit > MAX_ENTRIES and type(limit.algorithm) in LOGS:
        raise ConfigError(
            f"sliding-window-log keeps at most {MAX_ENTRIES} entries per key on Memcached; got '{limit.quota}'."
            ' Use algorithm = "tiered-window"'
        )


def as_store_error(error: Exception) -> StoreError:
    if isinstance(error, StoreError):
        return error
    if isinstance(error, TimeoutError):
        return StoreError("Memcached did not reply within the time budget")
    verb = " replied" if isinstance(error, ProtocolError) else ""
    kind = "" if isinstance(error, (OSError, ProtocolError)) else f"{type(error).__name__}: "
    return StoreError(f"Memcached{verb}: {kind}{error}")
