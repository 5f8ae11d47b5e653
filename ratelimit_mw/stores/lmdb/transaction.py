"""What happens in a transaction: all hits of a request decided and kept, or none; a little sweeping beside it.

Every sixteenth write of a process looks at the next 64 records and deletes those that may go. Where it stopped is
kept in the environment, so that all processes walk one way, however short they live.

From three quarters of the pages on room is short, from seven eighths on nothing grows. The last eighth is for what
LMDB needs to change what is there: it never changes a page in place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, TypeVar, TypeVarTuple

import lmdb

from ...clock import SECOND
from ...decision import Correction, Decision, Hit
from ...errors import StoreError
from ..base import decide_all
from .keys import END, FIRST_SWEPT, META
from .records import FROZEN, ROOMY, SHARING, Identity, NoRoomError, Records

__all__ = ["Ledger"]

_DAY: Final = 86_400 * SECOND
_TENDED_EVERY: Final = 4
_SWEPT_EVERY: Final = 16
_SWEPT_AT_ONCE: Final = 64
_MEASURED_EVERY: Final = 64
_CHECKED_EVERY: Final = 4096
_SWEEP_AT: Final = META + b"sweep"
_RETRY: Final = SECOND
_Answer = TypeVar("_Answer")
_Arguments = TypeVarTuple("_Arguments")
_log = logging.getLogger("ratelimit_mw")


class Ledger:
    """The states of an environment, for the holder of its lock.

    ``now`` is the time by which records go. ``at`` is the time at which is decided: the same one, or a given one that
    need not have to do with it.
    """

    def __init__(self, env: lmdb.Environment, identity: Identity, pages: int) -> None:
        self._env = env
        self._records = Records(identity)
        self._pages = pages
        self._room = ROOMY
        self._told = {ROOMY}
        self._writes = 0

    def apply(self, hits: Sequence[Hit], now: int, at: int | None, consume: bool) -> list[Decision]:
        decide = self._decide if len(hits) > 1 else self._decide_one
        return self._in_transaction(decide, now, hits, now if at is None else at, _least(at), consume)

    def correct(self, changes: Sequence[Correction], now: int, at: int | None) -> list[int]:
        return self._in_transaction(self._change, now, changes, now if at is None else at, _least(at))

    def forget(self, keys: Sequence[str], now: int) -> None:
        return self._in_transaction(self._forget, now, keys)

    def ping(self, now: int) -> None:
        """A write that leaves nothing to decide: where pages are short, reading goes on all the same."""
        return self._in_transaction(self._ping, now)

    def _decide_one(self, hits: Sequence[Hit], at: int, least: int, consume: bool) -> tuple[list[Decision], bool]:
        """``_decide`` for a lone hit, which has nothing to agree on."""
        limit, key, cost = hits[0]
        found = self._records.find(limit, key)
        kept, decision = limit.decide(found[2], at, cost)
        decision.hit = hits[0]
        if kept is found[2] or not consume:
            return [decision], False
        span = decision.reset_us
        try:
            self._records.keep(limit, key, found, kept, span if span > least else least)
        except NoRoomError:
            return [_rejection(hits[0], found[2], at)], False
        return [decision], True

    def _decide(self, hits: Sequence[Hit], at: int, least: int, consume: bool) -> tuple[list[Decision], bool]:
        records = self._records
        found = [records.find(limit, key) for limit, key, _ in hits]
        decisions, writes = decide_all(hits, [state for _, _, state in found], at)
        if not consume or not writes:
            return decisions, False
        places = {id(hit): place for place, hit in enumerate(hits)}
        try:
            for hit, state in writes:
                place = places[id(hit)]
                span = decisions[place].reset_us
                records.keep(hit[0], hit[1], found[place], state, span if span > least else least)
        except NoRoomError:
            return [_rejection(hit, state, at) for hit, (_, _, state) in zip(hits, found, strict=True)], False
        return decisions, True

    def _change(self, changes: Sequence[Correction], at: int, least: int) -> tuple[list[int], bool]:
        changed = False
        for limit, key, cost, consumed in changes:
            found = self._records.find(limit, key)
            if consumed is None:
                state = limit.algorithm.charge(found[2], at, cost)
            else:
                state = limit.algorithm.give_back(found[2], at, consumed, cost)
            if state is found[2]:
                continue
            changed = True
            try:
                self._records.keep(limit, key, found, state, max(least, limit.decide(state, at, 0)[1].reset_us))
            except NoRoomError as error:
                raise StoreError(f"{self._env.path()} is full; a correction was lost") from error
        return [at] * len(changes), changed

    def _forget(self, keys: Sequence[str]) -> tuple[None, bool]:
        for key in keys:
            self._records.forget(key)
        return None, True

    def _ping(self) -> tuple[None, bool]:
        self._records.ping()
        return None, True

    def _in_transaction(
        self, work: Callable[[*_Arguments], tuple[_Answer, bool]], now: int, *arguments: *_Arguments
    ) -> _Answer:
        """Do the work and commit it if it says so; once more with less room as often as there was too little."""
        sweeps = True
        while True:
            txn = self._env.begin(write=True)
            try:
                self._records.begin(txn, self._room, now)
                answer, changed = work(*arguments)
                if changed:
                    writes, self._writes = self._writes, self._writes + 1
                    if sweeps and writes % _TENDED_EVERY == 0:
                        self._tend(txn, now, writes)
                    txn.commit()
                else:
                    txn.abort()
                return answer
            except lmdb.MapFullError:
                txn.abort()
                sweeps = False
            except BaseException:
                txn.abort()
                raise
            self._take_less_room()

    # -- tending --------------------------------------------------------------------------------------------

    def _tend(self, txn: lmdb.Transaction[bytes], now: int, writes: int) -> None:
        """What is due beside a write, now and then."""
        if writes % _SWEPT_EVERY == 0 or self._room != ROOMY:
            _sweep(txn, now)
        if writes % _MEASURED_EVERY == 0:
            self._measure()
        if writes % _CHECKED_EVERY == 0:
            self._env.reader_check()

    def _measure(self) -> None:
        told = self._env.stat()
        used = told["branch_pages"] + told["leaf_pages"] + told["overflow_pages"]
        self._go(FROZEN if used * 8 >= self._pages * 7 else SHARING if used * 4 >= self._pages * 3 else ROOMY)

    def _take_less_room(self) -> None:
        """The map is full in spite of all: something that died keeps pages, or other data fills it."""
        self._env.reader_check()
        if self._room == FROZEN:
            raise StoreError(f"{self._env.path()} is full of other data, or a reader that does not end keeps old pages")
        self._go(self._room + 1)

    def _go(self, room: int) -> None:
        if room not in self._told:
            self._told.add(room)
            share = "new keys share states of their limit" if room == SHARING else "what would have to grow is rejected"
            _log.warning("%s is nearly full; until something has gone, %s", self._env.path(), share)
        self._room = room


def _least(at: int | None) -> int:
    """The shortest span to keep a state: a given time says nothing about when it may go."""
    return 0 if at is None else _DAY


def _sweep(txn: lmdb.Transaction[bytes], now: int) -> None:
    """Delete what may go of the next records; after the last one comes the first."""
    stamp = now.to_bytes(8, "big")
    with txn.cursor() as cursor:
        here = cursor.set_range(txn.get(_SWEEP_AT) or FIRST_SWEPT)
        seen = islice(cursor.iternext(keys=False), _SWEPT_AT_ONCE) if here else ()
        goes = [cursor.key() for data in seen if data[:8] <= stamp]
        last = cursor.key()
    for name in goes:
        if name < END:
            txn.delete(name)
    # An end that was reached has no name: an empty one, or that of somebody else's record.
    txn.put(_SWEEP_AT, last if FIRST_SWEPT <= last < END else FIRST_SWEPT)


def _rejection(hit: Hit, state: Any, at: int) -> Decision:
    """There was no room to count this hit, so it does not pass."""
    look = hit.limit.decide(state, at, 0)[1]
    decision = Decision(hit.cost == 0, look.remaining, _RETRY if hit.cost else 0, look.reset_us, look.at_us)
    decision.hit = hit
    return decision
