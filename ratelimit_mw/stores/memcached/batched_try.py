"""One try for several requests of a process at once, without I/O: all keys are read, then each is written once.

The requests are decided in their order, each over the states that those before it leave, as though they had come one
after the other. Whose key was lost to somebody faster has not been decided: what else it had written is given back.
"""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...decision import Correction, Decision, Hit
from ..base import decide_all
from .client.protocol import Ask, WireError
from .keys import Life
from .record import PackedCell
from .steps import Flow, Tools, Write, back, corrected, given_up, written

__all__ = ["Request", "tried"]


class Request:
    """A call that waits: its answer is ``due`` at a time, and it is tried again until ``last``.

    ``lost`` counts the races that it has lost, ``longest`` is how many seconds a try took at most.
    """

    __slots__ = ("answer", "decisions", "due", "given", "hits", "last", "longest", "lost", "tokens", "tools")

    def __init__(
        self, hits: Sequence[Hit], tokens: Sequence[bytes], given: int | None, tools: Tools, due: float, last: float
    ) -> None:
        self.hits = hits
        self.tokens = tokens
        self.given = given
        self.tools = tools
        self.due = due
        self.last = last
        self.answer: Future[list[Decision]] = get_running_loop().create_future()
        self.decisions: list[Decision] = []
        self.lost = 0
        self.longest = 0.0

    def loses(self, decisions: list[Decision]) -> None:
        """Somebody was faster."""
        self.decisions = decisions
        self.lost += 1

    def stands(self, decisions: list[Decision]) -> None:
        """Nobody was faster."""
        if not self.answer.done():
            self.answer.set_result(decisions)

    def is_over(self, now: float) -> bool:
        """Whether nobody waits for it any more, or it has lost and no other try fits into its time."""
        if self.lost and not self.answer.done() and now + self.longest >= self.last:
            self.answer.set_result(given_up(self.hits, self.decisions))
        return self.answer.done()

    def fail(self, error: BaseException) -> None:
        """End with an error. A server that has answered as far as a lost race is not one that was silent."""
        if self.answer.done():
            return
        if self.lost and isinstance(error, TimeoutError):
            self.answer.set_result(given_up(self.hits, self.decisions))
        else:
            self.answer.set_exception(error)

    def result(self) -> list[Decision]:
        """The answer, or what stands for it when its time has run out."""
        if not self.answer.cancelled():
            return self.answer.result()
        if not self.lost:
            raise TimeoutError
        return given_up(self.hits, self.decisions)


class Entry(NamedTuple):
    """What a request comes to when nobody is faster."""

    request: Request
    decisions: list[Decision]
    writes: list[Write]


def tried(requests: Sequence[Request], tools: Tools) -> Flow[None]:
    """Decide and write. A request is told as soon as it stands; one without an answer has lost a race."""
    now = tools.clock()
    limits = {token: hit.limit for each in requests for token, hit in zip(each.tokens, each.hits, strict=True)}
    cells = {token: PackedCell(limit, token, tools.names, now) for token, limit in limits.items()}
    readable = yield from _read(requests, cells)
    entries = _entered(readable, cells, now)
    lost = yield from _written(entries)
    due: dict[int | None, list[Correction]] = {}
    for request, decisions, writes in entries:
        if lost.isdisjoint(request.tokens):
            request.stands(decisions)
            continue
        request.loses(decisions)
        due.setdefault(request.given, []).extend(back(write) for write in writes if write.cell.token not in lost)
    for given, changes in due.items():
        yield from corrected(changes, given, tools, lost=1)


def _read(requests: Sequence[Request], cells: Mapping[bytes, PackedCell]) -> Flow[list[Request]]:
    """Read all cells. A value that is no state fails the requests for it, and nobody else's; the others."""
    told = yield [Ask(token, names=cell.wants()) for token, cell in cells.items()]
    broken: dict[bytes, WireError] = {}
    for (token, cell), answer in zip(cells.items(), told, strict=True):
        try:
            cell.take(answer.values)
        except WireError as problem:
            broken[token] = problem
    for request in requests:
        for token in broken.keys() & request.tokens:
            request.fail(broken[token])
    return [request for request in requests if broken.keys().isdisjoint(request.tokens)]


def _entered(requests: Sequence[Request], cells: Mapping[bytes, PackedCell], now: int) -> list[Entry]:
    """Decide one after the other, each over what those before it leave."""
    states = {token: cell.state for token, cell in cells.items()}
    entries = []
    for request in requests:
        at = now if request.given is None else request.given
        decisions, kept = decide_all(request.hits, [states[token] for token in request.tokens], at)
        kept_of = {id(hit): state for hit, state in kept}
        writes = [
            Write(cells[token], hit, decision, kept_of[id(hit)])
            for token, hit, decision in zip(request.tokens, request.hits, decisions, strict=True)
            if id(hit) in kept_of
        ]
        states.update((write.cell.token, write.kept) for write in writes)
        entries.append(Entry(request, decisions, writes))
    return entries


def _written(entries: Sequence[Entry]) -> Flow[set[bytes]]:
    """Write what all of them together leave; the keys at which somebody was faster."""
    writes = {write.cell.token: write for entry in entries for write in entry.writes}  # the last of each key
    life = Life(given=any(entry.request.given is not None for entry in entries))
    _, stands = yield from written(list(writes.values()), life)
    return writes.keys() - {write.cell.token for write in stands}
