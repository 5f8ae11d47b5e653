"""The memory store: a dictionary under a lock, bounded, expiring without threads or timers.

**Expiry.** See ``shelf``: what has not changed for as long as it can matter is dropped, whole tables at a time.

**Bound.** Once ``max_keys`` keys are held, a new key shares one of 2**16 states of its limit, chosen by keyed hash:
it may be rejected for what its neighbours consumed, and no key, old or new, ever gets more than its limit.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult

from ...algorithms.limit import Limit, prefix_of
from ...clock import SECOND, Clock, now_us
from ...decision import Correction, Decision, Hit
from ...errors import ConfigError
from ...forksafe import create_lock
from ..base import Store, decide_all
from .generations import Generations, Table
from .snapshot import Saved, Snapshot, packed, read, unpacked, write

__all__ = ["MemoryStore"]

_SHARED_STATES: Final = 1 << 16
_DROPPED_AT_ONCE: Final = 50_000  # keys freed by one write: a few milliseconds, where a whole table could take many
_SHORTEST_SPAN: Final = SECOND
_LIMITS_KNOWN: Final = 10_000
_AT_FIRST: Final = -1 << 63  # the time of the first sweep of states that were read
_MOST_DIGITS: Final = 12


class MemoryStore(Store):
    """States of one process, safe under threads.

    >>> store = MemoryStore(max_keys=1_000_000)
    >>> len(store)
    0
    """

    def __init__(
        self, max_keys: int = 1_000_000, clock: Clock = now_us, snapshot: str | PathLike[str] | None = None
    ) -> None:
        self._max_keys = _checked_bound(max_keys)
        self.clock = clock
        self._lock = create_lock(self, "_lock", threading.Lock, MemoryStore._forked)
        self._secret = secrets.token_bytes(16)
        self._shelves: dict[int, Generations] = {}
        self._shelf_of: dict[Limit, Generations] = {}
        self._shelf_by_prefix: dict[str, Generations] = {}
        self._turns_at = 1 << 63
        self._dying: list[Table] = []
        self._keys = 0
        self._limit_by_prefix: dict[str, Limit] = {}
        self._snapshot = None if snapshot is None else _snapshot_file(Path(snapshot))
        if self._snapshot is not None and (saved := read(self._snapshot)):
            self._take_over(saved)

    def save(self, path: str | PathLike[str] | None = None) -> None:
        """Write all states to ``path``, or to the store's own snapshot, atomically. ``OSError`` when it cannot."""
        target = self._snapshot if path is None else Path(path)
        if target is None:
            raise ConfigError("say where: save(path), or memory://?snapshot=/path")
        write(target, self._states())

    def _states(self) -> Snapshot:
        """All states as bytes. States are never changed in place, so only the tables are copied under the lock."""
        with self._lock:
            dumps = {prefix: limit.algorithm.dump for prefix, limit in self._limit_by_prefix.items()}
            shelves = [shelf.copy() for shelf in self._shelves.values()]
        saved = [packed(shelf, dumps) for shelf in shelves]
        return Snapshot(self._secret, [shelf for shelf in saved if shelf.prefixes])

    def _take_over(self, saved: Snapshot) -> None:
        """Go on where the other store ended; what nobody asks for stays bytes, and expires like all else."""
        self._secret = saved.secret
        for each in saved.shelves:
            shelf, prefixes = unpacked(each)
            self._shelves[shelf.span] = shelf
            self._shelf_by_prefix |= dict.fromkeys(prefixes, shelf)
            self._keys += len(shelf.young) + len(shelf.old)
            self._turns_at = _AT_FIRST

    def close(self) -> None:
        if self._snapshot is not None:
            self.save()

    def _forked(self, whole: bool) -> None:
        """In a child of a fork; with tables that a thread may have been changing it begins anew, and saves nothing."""
        if not whole:
            self.__dict__.update(vars(MemoryStore(self._max_keys, self.clock)))

    def __len__(self) -> int:
        """The keys held, those that are about to be dropped included, shared states not."""
        return self._keys

    def apply_one(self, limit: Limit, key: str, cost: int, now: int | None = None) -> Decision:
        """``apply`` for a single hit of a limit that enforces, without the list."""
        self._lock.acquire()  # a third faster than "with", on the path that every request takes
        try:
            if now is None:
                now = self.clock()
            if now >= self._turns_at or self._dying:
                self._sweep(now)
            shelf = self._shelf_of.get(limit) or self._place(limit, now)
            young = shelf.young.get(key)
            state = self._find(limit, shelf, key) if young is None or type(young) is Saved else young
            kept, decision = limit.decide(state, now, cost)
            if kept is not state:
                if young is None:
                    self._keep(shelf, key, kept)
                else:
                    shelf.young[key] = kept
            elif decision.reset_us > shelf.span:
                self._owes(shelf, key, now + decision.reset_us)
        finally:
            self._lock.release()
        decision.hit = (limit, key, cost)
        return decision

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        with self._lock:
            now = self.clock() if now is None else now
            if now >= self._turns_at or self._dying:
                self._sweep(now)
            shelves = {}
            states = []
            for limit, key, _ in hits:
                shelf = shelves[key] = self._shelf_of.get(limit) or self._place(limit, now)
                state = shelf.young.get(key)
                states.append(self._find(limit, shelf, key) if state is None or type(state) is Saved else state)
            decisions, writes = decide_all(hits, states, now)
            if consume:
                for hit, state in writes:
                    self._keep(shelves[hit[1]], hit[1], state)
            for (_, key, _), decision in zip(hits, decisions, strict=True):
                if decision.reset_us > shelves[key].span:
                    self._owes(shelves[key], key, now + decision.reset_us)
            return decisions

    def _owes(self, shelf: Generations, key: str, until: int) -> None:
        """Keep a key for longer than others: it was charged beyond its limit, or its amount was cut since."""
        shelf.debts[key if key in shelf.young or key in shelf.old else self._slot(key)] = until

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        with self._lock:
            now = self.clock() if now is None else now
            self._sweep(now)
            for change in changes:
                self._change(change, now)
            return [now] * len(changes)

    def _change(self, change: Correction, now: int) -> None:
        limit, key, cost, consumed = change
        shelf = self._shelf_of.get(limit) or self._place(limit, now)
        state = self._find(limit, shelf, key)
        if consumed is None:
            state = limit.algorithm.charge(state, now, cost)
        else:
            state = limit.algorithm.give_back(state, now, consumed, cost)
        self._keep(shelf, key, state)
        resets_in = limit.decide(state, now, 0)[1].reset_us
        if resets_in > shelf.span:
            self._owes(shelf, key, now + resets_in)

    def forget(self, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                shelf = self._shelf_by_prefix.get(prefix_of(key))
                if shelf is not None:
                    self._drop(shelf, key)

    def _drop(self, shelf: Generations, key: str) -> None:
        for table in (shelf.young, shelf.old):
            if table.pop(key, None) is not None:
                self._keys -= 1
                shelf.debts.pop(key, None)
                return
        slot = self._slot(key)
        shelf.shared.pop(slot, None)
        shelf.shared_old.pop(slot, None)

    def _find(self, limit: Limit, shelf: Generations, key: str) -> Any:
        """The state of a key; at first sight of a key, that of the others it may have shared one with."""
        state = shelf.young.get(key)
        if state is None:
            state = shelf.old.get(key)
            if state is None and (shelf.shared or shelf.shared_old):
                slot = self._slot(key)
                state = shelf.shared.get(slot)
                if state is None:
                    state = shelf.shared_old.get(slot)
        return _loaded(limit, state) if type(state) is Saved else state

    def _keep(self, shelf: Generations, key: str, state: Any) -> None:
        if state is None:
            self._drop(shelf, key)
        elif key in shelf.young or shelf.old.pop(key, None) is not None:
            shelf.young[key] = state
        elif self._keys < self._max_keys:
            shelf.young[key] = state
            self._keys += 1
        else:
            shelf.shared[self._slot(key)] = state

    def _slot(self, key: str) -> str:
        """The name of the shared state that a key falls to; without the secret nobody can choose neighbours."""
        digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, key=self._secret).digest()
        return f"{prefix_of(key)}{int.from_bytes(digest, 'big') % _SHARED_STATES}"

    def _place(self, limit: Limit, now: int) -> Generations:
        """The shelf of a limit. Limits with one prefix share their keys, so they stand where the longest-lived fits."""
        span = max(_SHORTEST_SPAN, limit.algorithm.lifetime)
        shelf = self._shelf_by_prefix.get(limit.prefix)
        if shelf is None or shelf.span < span:
            taller = self._shelves.get(span) or Generations(span, now)
            self._shelves[span] = taller
            self._turns_at = min(self._turns_at, taller.turns_at)
            if shelf is not None:
                shelf.move_prefix(limit.prefix, taller)
            self._shelf_of.clear()
            shelf = self._shelf_by_prefix[limit.prefix] = taller
        self._limit_by_prefix[limit.prefix] = limit
        if len(self._shelf_of) >= _LIMITS_KNOWN:
            self._shelf_of.clear()
        self._shelf_of[limit] = shelf
        return shelf

    def _sweep(self, now: int) -> None:
        if now >= self._turns_at:
            for shelf in self._shelves.values():
                if self._turns_at == _AT_FIRST:
                    shelf.turns_at = min(shelf.turns_at, now + shelf.span)  # saved by a clock that was ahead
                if now >= shelf.turns_at:
                    self._dying += shelf.turn(now)
            self._turns_at = min(shelf.turns_at for shelf in self._shelves.values())
        freed = 0
        while self._dying and freed < _DROPPED_AT_ONCE:
            table = self._dying[-1]
            if len(table) <= _DROPPED_AT_ONCE:
                freed += len(table)
                self._dying.pop()
                continue
            for _ in range(_DROPPED_AT_ONCE):
                table.popitem()
            freed += _DROPPED_AT_ONCE
        self._keys -= freed


def _checked_bound(max_keys: int) -> int:
    if type(max_keys) is not int or max_keys < 1:
        raise ConfigError(f"max_keys is a whole number from 1 on; got {max_keys!r}")
    return max_keys


def _snapshot_file(path: Path) -> Path:
    """The path itself, where a file can be; better found at the start than when all is to be saved."""
    if not path.name or not path.parent.is_dir():
        raise ConfigError(f"expected a file in a folder that is there; got {str(path)!r}", "snapshot")
    return path


def _loaded(limit: Limit, state: Saved) -> Any:
    """A state that was read; fresh where the algorithm has come to write them in another way."""
    try:
        return limit.algorithm.load(state)
    except ValueError:
        return None


OPTIONS: Final = ("max_keys", "snapshot")


def parse_address(address: SplitResult, options: dict[str, str]) -> tuple[int, str | None]:
    """The bound and the snapshot of ``memory://?max_keys=100000&snapshot=/var/lib/app/limits``."""
    if address.netloc or address.path.strip("/"):
        raise ConfigError("memory:// has no host and no path")
    text = options.get("max_keys", "1000000")
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        raise ConfigError(f"max_keys is a whole number; got {text[:99]!r}")
    return _checked_bound(int(text)), options.get("snapshot")


def open_address(parsed: tuple[int, str | None], _timeout_us: int) -> MemoryStore:
    """The store at an address that was read."""
    return MemoryStore(parsed[0], snapshot=parsed[1])
