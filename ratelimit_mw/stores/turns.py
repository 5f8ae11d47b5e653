"""``Turns``: calls of this process that use the same keys take turns, so that they do not race at the store."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Set
from concurrent.futures import Future
from typing import Any, Protocol


class TurnTaker(Protocol):
    """A call. While it waits for its ``keys``, it has a ``turn``: the calls to decide together, if each joins."""

    keys: Set[str]
    joins: bool
    turn: Future[Any]


class Turns:
    """The keys that calls of this process are using, so that no two race, and the calls that wait for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._waiting: list[TurnTaker] = []

    def take(self, call: TurnTaker) -> bool:
        """Take the keys of a call, or let it wait. A call does not overtake another one."""
        with self._lock:
            is_free = self._busy.isdisjoint(call.keys)
            if is_free and self._waiting:
                is_free = all(each.keys.isdisjoint(call.keys) for each in self._waiting)
            if is_free:
                self._busy |= call.keys
            else:
                call.turn = Future()
                self._waiting.append(call)
        return is_free

    def leave(self, call: TurnTaker) -> bool:
        """Let a call wait no longer. Return False if its turn has come."""
        with self._lock:
            if is_waiting := call in self._waiting:
                self._waiting.remove(call)
                call.turn.set_result(())
        return is_waiting

    def end(self, calls: Iterable[TurnTaker]) -> None:
        """Free the keys of calls, and begin the turns of those that waited for them: one for all with a common key."""
        turns: list[tuple[set[str], list[TurnTaker]]] = []
        with self._lock:
            for each in calls:
                self._busy -= each.keys
            waiting, self._waiting, blocked = self._waiting, [], self._busy.copy()
            for call in waiting:
                near = [turn for turn in turns if not turn[0].isdisjoint(call.keys)]
                is_free = blocked.isdisjoint(call.keys)
                if is_free and not near:
                    turns.append((set(call.keys), [call]))
                elif is_free and len(near) == 1 and call.joins and near[0][1][0].joins:
                    near[0][0].update(call.keys)
                    near[0][1].append(call)
                else:
                    self._waiting.append(call)
                    blocked |= call.keys
            for keys, group in turns:
                self._busy |= keys
                group[-1].turn.set_result(group)  # it has most time left
