"""The memory store: dictionaries under a lock, bounded. They expire without threads or timers.

When the store holds ``max_keys`` keys, each new key shares one of 2**16 states of its limit, chosen by a
keyed hash. Such a client may be rejected for the cost of its neighbours. No key ever gets more than its limit. Bans
are not shared: a new client is not banned while the store is full.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult
from weakref import ref

from ...clock import SECOND, Clock, now_us
from ...decision import Correction, Decision, Hit, Limit, prefix_of, withdraw
from ...errors import ConfigError
from ...quota import parse_duration
from ...runtime.forksafe import create_lock
from ...runtime.heartbeat import Heartbeat
from ..base import MAX_LISTED, RECORD_PREFIX, KeyPage, Store, numbers_in
from .generations import Generations, Table
from .snapshot import PackedState, Snapshot, pack, read, unpack, write

OPTIONS: Final = ("max_keys", "snapshot", "snapshot_interval")
_SHARED_STATES: Final = 1 << 16
_FAR: Final = 86_400 * SECOND
_FREED_AT_ONCE: Final = 50_000  # keys freed by one write: a few milliseconds, where a whole table may take many
_MAX_LIMITS: Final = 10_000
_NEVER: Final = 1 << 63
_log = logging.getLogger("ratelimit_mw")


class MemoryStore(Store):
    """Keeps states in this process. It is safe under threads.

    Args:
        max_keys: The maximum number of keys with a state of their own, at least 1. A key takes about 300 bytes.
        clock: A function that returns whole microseconds. It applies when the limiter has no clock.
        snapshot: A file. Its states are read now. A thread and ``close`` write all states to it.
        snapshot_interval: The seconds between two writes of the thread.

    Raises:
        ConfigError: ``max_keys`` or ``snapshot_interval`` is not such a number, or the folder of ``snapshot`` does not
            exist.

    Example:
        >>> store = MemoryStore(max_keys=1_000_000)
        >>> len(store)
        0
    """

    name = "memory://"

    def __init__(
        self,
        max_keys: int = 1_000_000,
        clock: Clock = now_us,
        snapshot: str | PathLike[str] | None = None,
        snapshot_interval: float = 60.0,
    ) -> None:
        if type(max_keys) is not int or max_keys < 1:
            raise ConfigError(f"max_keys must be a whole number of at least 1, got {max_keys!r}")
        if not snapshot_interval > 0:
            raise ConfigError(f"snapshot_interval must be a time above 0, got {snapshot_interval!r} seconds")
        path = None if snapshot is None else Path(snapshot)
        if path and (not path.name or not path.parent.is_dir()):
            raise ConfigError(f"snapshot must be a file in an existing folder, got {str(path)!r}")
        self._max_keys = max_keys
        self.clock = clock
        self._lock = create_lock(self, "_lock", threading.Lock, MemoryStore._after_fork)
        self._secret = secrets.token_bytes(16)
        self._by_limit: dict[Limit, Generations] = {}
        self._by_prefix: dict[str, Generations] = {}
        self._rotates_at = _NEVER
        self._dropped: list[Table] = []
        self._keys = 0
        self._records: dict[str, bytes] = {}
        self._snapshot = path
        self._saving = create_lock(self, "_saving", threading.Lock)
        self._saver = Heartbeat(_save, snapshot_interval, "write the snapshot", "it has older counts")
        self._me = ref(self, self._saver.release)
        hash(self._me)  # a reference to an object that is gone has only the hash of before
        if path and (saved := read(path)):
            self._load(saved)

    def save(self, path: str | PathLike[str] | None = None) -> None:
        """Write all states to a file in one step.

        Args:
            path: The file. By default the ``snapshot`` of the store.

        Raises:
            ConfigError: There is no path.
            OSError: The file cannot be written.
        """
        target = self._snapshot if path is None else Path(path)
        if target is None:
            raise ConfigError("no snapshot path. Call save(path) or use memory://?snapshot=/path")
        with self._saving:
            with self._lock:  # A state is never changed in place, so the lock covers only the copy of the tables.
                copies = {prefix: generations.copy() for prefix, generations in self._by_prefix.items()}
                records = dict(self._records)
            write(target, Snapshot(self._secret, pack(copies), records))

    def _load(self, saved: Snapshot) -> None:
        """Continue from a snapshot. A state stays bytes until its key is used, and expires like all others."""
        self._secret = saved.secret
        self._records.update(saved.records)
        self._by_prefix = unpack(saved.generations)
        self._keys = sum(len(each.old) for each in self._by_prefix.values())
        self._rotates_at = 0

    def close(self) -> None:
        """Write the snapshot if the store has one and was used. An error is logged, as a shutdown must not fail."""
        self._saver.close()
        if len(self._saver):
            try:
                self.save()
            except OSError as error:
                text = "cannot write the snapshot %s (%s); a restart begins with older counts"
                _log.error(text, self._snapshot, error.strerror or error)

    def _after_fork(self, intact: bool) -> None:
        """In a forked child: start empty, without a snapshot, if another thread was changing the tables."""
        self._by_limit.clear()  # the first request of the child starts the thread that writes the snapshot
        if not intact:
            self.__dict__.update(vars(MemoryStore(self._max_keys, self.clock)))

    def __len__(self) -> int:
        """The number of keys with a state of their own, including keys that are about to be dropped."""
        return self._keys

    def _apply_one(self, limit: Limit, key: str, cost: int, now: int | None = None) -> Decision:
        """``apply`` for one hit of a limit that enforces, without a list."""
        self._lock.acquire()  # a third faster than "with", and each request takes this path
        try:
            if now is None:
                now = self.clock()
            if now >= self._rotates_at or self._dropped:
                self._sweep(now)
            generations = self._by_limit.get(limit) or self._generations_of(limit, now)
            young = generations.young.get(key)
            state = self._find(limit, generations, key) if young is None else young
            kept, decision = limit.decide(state, now, cost)
            if kept is not state:
                if young is None:
                    self._keep(generations, key, kept)
                else:
                    generations.young[key] = kept
            elif decision.reset_us > generations.span:
                self._keep_longer(generations, key, now, decision)
        finally:
            self._lock.release()
        decision.hit = (limit, key, cost)
        return decision

    def apply(  # noqa: C901 - on the path of most requests, so one function
        self, hits: Sequence[Hit], now: int | None = None, consume: bool = True
    ) -> list[Decision]:
        self._lock.acquire()  # as in ``_apply_one``
        try:
            if now is None:
                now = self.clock()
            if now >= self._rotates_at or self._dropped:
                self._sweep(now)
            decisions: list[Decision] = []
            states: list[Any] = []
            writes: list[tuple[Hit, Any]] = []
            is_plain = True  # each hit consumes
            for hit in hits:  # ``decide_all``, in the loop that finds the states
                limit, key, cost = hit
                generations = self._by_limit.get(limit) or self._generations_of(limit, now)
                state = generations.young.get(key)
                if state is None:
                    state = self._find(limit, generations, key)
                states.append(state)
                kept, decision = limit.decide(state, now, cost)
                decision.hit = hit
                decisions.append(decision)
                if kept is not state:
                    writes.append((hit, kept))
                if kept is state or not decision.allowed:
                    is_plain = False
            if not is_plain:
                writes = withdraw(hits, states, now, decisions, writes)
            for (limit, key, _), state in writes if consume else ():
                generations = self._by_limit.get(limit) or self._generations_of(limit, now)
                if state is not None and key in generations.young:
                    generations.young[key] = state  # the most common case of _keep, without its call
                else:
                    self._keep(generations, key, state, limit.shares)
            if not is_plain:  # after the writes, because a shared state has another key
                self._keep_overdue(decisions, now)
            return decisions
        finally:
            self._lock.release()

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        with self._lock:
            now = self.clock() if now is None else now
            self._sweep(now)
            for change in changes:
                limit, key = change.limit, change.key
                generations = self._by_limit.get(limit) or self._generations_of(limit, now)
                new = change.apply_to(self._find(limit, generations, key), now)
                self._keep(generations, key, new, limit.shares)
                if (decision := limit.decide(new, now, 0)[1]).reset_us > generations.span:
                    self._keep_longer(generations, key, now, decision)
            return [now] * len(changes)

    def forget(self, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                generations = self._by_prefix.get(prefix_of(key))
                if generations is not None:
                    self._keep_saved()
                    self._drop(generations, key)

    def list_keys(self, prefix: str, cursor: str = "") -> KeyPage:
        _, start = numbers_in(cursor)
        with self._lock:
            tables = [table for each in self._by_prefix.values() for table in (each.young, each.old)]
            keys = list(islice(chain(self._records, *tables), start, start + MAX_LISTED))
        following = f"0:{start + MAX_LISTED}" if len(keys) == MAX_LISTED else None
        return KeyPage([key for key in keys if key.startswith(prefix)], following)

    def read_record(self, name: str) -> bytes | None:
        with self._lock:
            return self._records.get(RECORD_PREFIX + name)

    def write_record(self, name: str, data: bytes | None, before: bytes | None) -> bool:
        key = RECORD_PREFIX + name
        with self._lock:
            if self._records.get(key) != before:
                return False
            self._keep_saved()
            if data is None:
                self._records.pop(key, None)
            else:
                self._records[key] = data
            return True

    def _find(self, limit: Limit, generations: Generations, key: str) -> Any:
        """Return the state of a key; for a new key the shared state that it may have used."""
        state = generations.young.get(key, generations.old.get(key))
        if state is None and (generations.shared or generations.shared_old) and limit.shares:
            shared_key = self._shared_key(key)
            state = generations.shared.get(shared_key, generations.shared_old.get(shared_key))
        if type(state) is not PackedState:
            return state
        with suppress(ValueError):  # The algorithm may write states in another form now.
            return limit.algorithm.load(state)
        return None

    def _keep(self, generations: Generations, key: str, state: Any, shares: bool = True) -> None:
        if state is None:
            self._drop(generations, key)
        elif key in generations.young or generations.old.pop(key, None) is not None:
            generations.young[key] = state
        elif self._keys < self._max_keys:
            generations.young[key] = state
            self._keys += 1
        elif shares:
            generations.shared[self._shared_key(key)] = state

    def _keep_longer(self, generations: Generations, key: str, now: int, decision: Decision) -> None:
        """Keep a key longer than a span: it was charged beyond its limit, or the limit was lowered since.

        A state that is far ahead of the clock is from a clock that was wrong. It is dropped.
        """
        if decision.at_us > now + generations.span + _FAR:
            self._drop(generations, key)
            return
        own = key in generations.young or key in generations.old
        generations.overdue[key if own else self._shared_key(key)] = min(now + decision.reset_us, _NEVER)

    def _keep_overdue(self, decisions: Iterable[Decision], now: int) -> None:
        for decision in decisions:
            limit, key, _ = decision.hit
            generations = self._by_limit.get(limit) or self._generations_of(limit, now)
            if decision.reset_us > generations.span:
                self._keep_longer(generations, key, now, decision)

    def _drop(self, generations: Generations, key: str) -> None:
        for table in (generations.young, generations.old):
            if table.pop(key, None) is not None:
                self._keys -= 1
                generations.overdue.pop(key, None)
                return
        shared_key = self._shared_key(key)
        generations.shared.pop(shared_key, None)
        generations.shared_old.pop(shared_key, None)

    def _shared_key(self, key: str) -> str:
        """Return the key of the shared state of a key. Without the secret, a client cannot choose its neighbours."""
        digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, key=self._secret).digest()
        return str(int.from_bytes(digest, "big") % _SHARED_STATES)

    def _generations_of(self, limit: Limit, now: int) -> Generations:
        """Choose the generations of a limit. Limits with one prefix share keys, so the longest lifetime counts."""
        self._keep_saved()
        span = max(SECOND, limit.algorithm.lifetime)
        if (generations := self._by_prefix.get(limit.prefix)) is None:
            generations = self._by_prefix[limit.prefix] = Generations()
            generations.rotates_at = now - now % span  # those of one span rotate together
        if generations.span < span:
            generations.rotates_at += span - generations.span
            generations.span = span
            self._rotates_at = min(self._rotates_at, generations.rotates_at)
        generations.limit = limit
        if len(self._by_limit) >= _MAX_LIMITS:
            self._by_limit.clear()
        self._by_limit[limit] = generations
        return generations

    def _keep_saved(self) -> None:
        """Write the snapshot from now on: a process that has only loaded the application, or checks it, does not."""
        if self._snapshot is not None:
            self._saver.hold(self._me)

    def _sweep(self, now: int) -> None:
        """Drop old tables, and free a bounded number of their keys."""
        if now >= self._rotates_at:
            for generations in self._by_prefix.values():
                if not generations.rotates_at:  # read from a file, whose process may have had another clock
                    generations.rotates_at = now + generations.span
                if now >= generations.rotates_at:
                    self._dropped += generations.rotate(now)
            self._rotates_at = min((each.rotates_at for each in self._by_prefix.values()), default=_NEVER)
        freed = 0
        while self._dropped and freed < _FREED_AT_ONCE:
            table = self._dropped.pop()
            freed += min(len(table), _FREED_AT_ONCE)
            if len(table) > _FREED_AT_ONCE:
                for _ in range(_FREED_AT_ONCE):
                    table.popitem()
                self._dropped.append(table)
        self._keys -= freed


def _save(store: ref[MemoryStore]) -> None:
    if (found := store()) is not None:
        found.save()


def parse_address(address: SplitResult, options: dict[str, str]) -> tuple[int, str | None, float]:
    """Return the bound, the snapshot, and the seconds between two writes of it."""
    if address.netloc or address.path.strip("/"):
        raise ConfigError("memory:// has no host and no path")
    text = options.get("max_keys", "1000000")
    if not re.fullmatch("0*[1-9][0-9]{0,11}", text):
        raise ConfigError(f"max_keys must be a whole number of at least 1, got {text[:99]!r}")
    try:
        interval = parse_duration(options.get("snapshot_interval", "1m")) / SECOND
    except ConfigError as error:
        raise ConfigError(f"memory:// option snapshot_interval: {error}") from error
    return int(text), options.get("snapshot"), interval


def open_address(parsed: tuple[int, str | None, float], _timeout_us: int) -> MemoryStore:
    max_keys, snapshot, interval = parsed
    return MemoryStore(max_keys, snapshot=snapshot, snapshot_interval=interval)
