"""What a call does, step by step, without I/O: whoever carries the steps out may block or await.

A request is decided from what was read, and all of it is written in one trip. Where somebody else was faster, what was
written is given back and the request is decided anew, while there is time; then it is rejected. A store that answers
is not a store that failed.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Generator, Iterable, MutableMapping, Sequence
from functools import partial
from secrets import token_hex
from typing import Final, NamedTuple, TypeVar

from ...algorithms.limit import Limit
from ...algorithms.window_log import RejectionCountingLog, SlidingWindowLog, TieredWindow
from ...clock import Clock
from ...decision import Charge, Correction, Decision, Hit
from ...quota import MAX_PERIOD
from ..base import decide_all
from .client.protocol import Ask, Told, delete, put
from .keys import Life, Names
from .log_record import LogCell
from .record import Cell, PackedCell
from .tier_record import TieredCell

__all__ = [
    "RACING",
    "Flow",
    "Pause",
    "Step",
    "Tools",
    "Turn",
    "Write",
    "applied",
    "back",
    "corrected",
    "forgotten",
    "given_up",
    "is_packed",
    "moment",
    "tried_once",
    "written",
]

T = TypeVar("T")

RACING: Final = 0.7
"""The part of a call's time in which lost races are run again. The rest is for one that takes longer than expected."""

_CORRECTING: Final = 0.9  # the same for corrections, which have nothing to give back
_AT_ONCE: Final = 500  # keys that are forgotten in one trip
_LONGEST_PAUSE: Final = 0.0005  # seconds: growing ones made a loser lose again to those who do not wait
_RETRY: Final = 100_000  # microseconds: when to come back after races that were lost
_log = logging.getLogger("ratelimit_mw")


class Pause(NamedTuple):
    """Wait a moment, so that those who race do not meet again."""

    seconds: float


class Turn(NamedTuple):
    """Wait until nobody else in this process is at these keys; the turn lasts until the call ends."""

    tokens: Sequence[bytes]


Step = list[Ask] | Pause | Turn
Flow = Generator[Step, list[Told], T]


class Tools(NamedTuple):
    """What a call needs besides its arguments. ``gone`` tells the part of its time that is gone, from 0 to 1."""

    names: Names
    clock: Clock
    gone: Callable[[], float]
    generations: MutableMapping[bytes, bytes]

    def cell(self, limit: Limit, key: str, now: int) -> Cell:
        token = self.names.token(key)
        kind = type(limit.algorithm)
        if kind is TieredWindow:
            return TieredCell(limit, token, self.names, now, self.generations)
        if kind is SlidingWindowLog or kind is RejectionCountingLog:
            return LogCell(limit, token, self.names, now)
        return PackedCell(limit, token, self.names, now)


def is_packed(limit: Limit) -> bool:
    """Whether the state of a limit is one small value."""
    return type(limit.algorithm) not in (TieredWindow, SlidingWindowLog, RejectionCountingLog)


class Write(NamedTuple):
    """What one hit is to leave."""

    cell: Cell
    hit: Hit
    decision: Decision
    kept: object


def applied(hits: Sequence[Hit], given: int | None, consume: bool, tools: Tools) -> Flow[list[Decision]]:
    """Decide all hits and, when all are allowed, consume them."""
    decisions: list[Decision] = []

    def once() -> Flow[bool]:
        decisions[:], stand = yield from tried_once(hits, given, consume, tools)
        return stand

    def wait(lost: int) -> Step:
        return Turn([tools.names.token(hit.key) for hit in hits]) if lost == 1 else moment()

    return decisions if (yield from _raced(once, wait, RACING, tools)) else given_up(hits, decisions)


def _raced(
    once: Callable[[], Flow[bool]], wait: Callable[[int], Step], part: float, tools: Tools, lost: int = 0
) -> Flow[bool]:
    """Try until a try stands; False when races were lost until no other fits into this part of the call's time.

    A try takes as long as the longest before it, if not longer. When time runs out after all, a server that has
    answered as far as a lost race is not one that failed.
    """
    longest = 0.0
    while True:
        began = tools.gone()
        try:
            if (yield from once()):
                return True
        except TimeoutError:
            if not lost:
                raise
            return False
        lost += 1
        longest = max(longest, tools.gone() - began)
        if tools.gone() + longest < part:
            yield wait(lost)
        if tools.gone() + longest >= part:
            return False


def tried_once(
    hits: Sequence[Hit], given: int | None, consume: bool, tools: Tools
) -> Flow[tuple[list[Decision], bool]]:
    """The decisions, and whether they stand. Where somebody else was faster, all is given back."""
    now = tools.clock() if given is None else given
    cells = [tools.cell(hit.limit, hit.key, now) for hit in hits]
    decisions, kept = yield from _decided(hits, cells, now)
    writes = [Write(cells[i], hits[i], decisions[i], state) for i, state in kept.items()]
    if not consume or not writes:
        return decisions, True
    all_won, stands = yield from written(writes, Life(given is not None))
    if not all_won:
        yield from corrected([back(write) for write in stands], given, tools, lost=1)
    return decisions, all_won


def written(writes: Sequence[Write], life: Life) -> Flow[tuple[bool, list[Write]]]:
    """Write all; whether nobody was faster anywhere, and what now stands."""
    stands: list[Write] = []
    for wave in _waves(writes):
        told = yield [cell.consume(kept, decision, hit.cost, life) for cell, hit, decision, kept in wave]
        won = [write.cell.won(answer) for write, answer in zip(wave, told, strict=True)]
        stands += [write for write, mine in zip(wave, won, strict=True) if mine or write.cell.counts_anyway]
        if not all(won):
            return False, stands
    return True, stands


def _waves(writes: Sequence[Write]) -> list[list[Write]]:
    """All at once, but for queues: a place in one cannot be given back once somebody stands behind it."""
    queues = [[write] for write in writes if write.hit.limit.algorithm.delays]
    others = [write for write in writes if not write.hit.limit.algorithm.delays]
    return [others, *queues] if others else queues


def _decided(hits: Sequence[Hit], cells: Sequence[Cell], now: int) -> Flow[tuple[list[Decision], dict[int, object]]]:
    """The decisions, and the states to keep by the place of their hit."""
    yield from _read([(cell, cell.wants) for cell in cells])
    while True:
        decisions, writes = decide_all(hits, [cell.state for cell in cells], now)
        kept_of = {id(hit): kept for hit, kept in writes}
        kept = {i: kept_of[id(hit)] for i, hit in enumerate(hits) if id(hit) in kept_of}
        open_ends = [
            (cell, names)
            for i, (cell, decision) in enumerate(zip(cells, decisions, strict=True))
            if not (decision.allowed and i in kept) and (names := cell.vague(decision, hits[i].cost))
        ]
        if not open_ends:
            return decisions, kept
        told = yield [Ask(cell.token, names=names) for cell, names in open_ends]
        for (cell, _), answer in zip(open_ends, told, strict=True):
            cell.take(answer.values)


def _read(cells: Sequence[tuple[Cell, Callable[[], Sequence[bytes]]]]) -> Flow[None]:
    """Read what each of the cells wants, as often as one wants something."""
    while wanted := [(cell, names) for cell, wants in cells if (names := wants())]:
        told = yield [Ask(cell.token, names=names) for cell, names in wanted]
        for (cell, _), answer in zip(wanted, told, strict=True):
            cell.take(answer.values)


def moment() -> Pause:
    """A pause after a lost race."""
    return Pause(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311 - it spreads those who race, and hides nothing


def given_up(hits: Sequence[Hit], decisions: list[Decision]) -> list[Decision]:
    """What a request is told whose races were all lost: what rejected it, or that it lost them."""
    rejected = any(not d.allowed and not hit.limit.shadow for hit, d in zip(hits, decisions, strict=True))
    return decisions if rejected else [_lost(decision) for decision in decisions]


def back(write: Write) -> Correction:
    """The change that undoes a write."""
    (limit, key, cost), decision = write.hit, write.decision
    return Correction(limit, key, cost, Charge(decision.at_us, cost, decision.delay_us))


def _lost(decision: Decision) -> Decision:
    """The rejection of a request whose races were all lost."""
    if not decision.allowed:
        return decision
    lost = Decision(False, 0, _RETRY, max(_RETRY, decision.reset_us), decision.at_us)
    lost.hit = decision.hit
    return lost


def corrected(changes: Sequence[Correction], given: int | None, tools: Tools, lost: int = 0) -> Flow[list[int]]:
    """Give back or charge, key by key in their order. ``lost``: how many races the call has lost before."""
    life, now = Life(given is not None), 0
    due: dict[str, list[Correction]] = {}
    for change in changes:
        due.setdefault(change.key, []).append(change)

    def once() -> Flow[bool]:
        nonlocal due, now
        now = tools.clock() if given is None else given
        cells = {key: tools.cell(mine[0].limit, key, now) for key, mine in due.items()}
        yield from _read([(cell, partial(cell.wants_for, due[key])) for key, cell in cells.items()])
        asks = {key: ask for key, cell in cells.items() if (ask := cell.correct(due[key], life))}
        told = (yield list(asks.values())) if asks else []
        won = {key for key, answer in zip(asks, told, strict=True) if cells[key].corrected(answer)}
        due = {key: due[key] for key in asks if key not in won}
        return not due

    if not (yield from _raced(once, lambda _: moment(), _CORRECTING, tools, lost)):
        _log.warning("%d corrections lost their races for all of their time and are left out", len(due))
    return [now] * len(changes)


def forgotten(keys: Iterable[str], tools: Tools) -> Flow[None]:
    """Make keys fresh. The counters of a tiered window are too many to name: from now on others count."""
    names, life = tools.names, Life(given=False)
    asks = []
    for key in keys:
        token = names.token(key)
        lines = [delete(names.state(token))]
        if _is_tiered(key):
            lines = [put(names.generation(token), token_hex(4).encode(), life(2 * MAX_PERIOD))]
        asks.append(Ask(token, lines))
    for start in range(0, len(asks), _AT_ONCE):
        yield asks[start : start + _AT_ONCE]


def _is_tiered(key: str) -> bool:
    """Whether a key's limit is a tiered window, by the third part of its prefix: name and variant."""
    parts = key.split("|", 3)
    return len(parts) == 4 and parts[2].startswith(f"{TieredWindow.name}.")
