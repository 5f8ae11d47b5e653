"""Locks and connections after a fork: a child process finds every lock free and uses nothing of its parent.

Without precautions a lock that another thread held at the fork stays locked in the child forever. ``create_lock``
makes locks that are taken before each fork and released in parent and child. A server may fork without Python's hooks,
as uWSGI does. ``check_process`` makes up for them.
"""

import os
import threading
from collections.abc import Callable, Iterator
from itertools import count
from random import SystemRandom
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from weakref import ref

CHANCE: Final = SystemRandom()
"""Random numbers that differ in each forked child. They leave the numbers of an application with a seed alone."""
_SECONDS: Final = 1.0  # the longest wait for one lock before a fork; then the child replaces the lock and its data


class _Lock(Protocol):
    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...

    def release(self) -> None: ...


class _Registration(NamedTuple):
    owner: ref[Any]
    attribute: str
    factory: Callable[[], _Lock] | None
    callback: Callable[[Any, bool], None] | None


_Owner = TypeVar("_Owner")
_Created = TypeVar("_Created", bound=_Lock)
_numbers: Final = count()
_entries: Final[dict[int, _Registration]] = {}
_held: Final[dict[int, list[_Lock]]] = {}  # by the number of the forking thread
_checking = threading.Lock()
process = os.getpid()
"""The process whose locks and connections these are. It differs after a fork without Python's hooks."""


def create_lock(
    owner: _Owner,
    attribute: str,
    factory: Callable[[], _Created],
    callback: Callable[[_Owner, bool], None] | None = None,
) -> _Created:
    """Create the lock that the caller assigns to ``attribute`` of ``owner``. ``owner`` is not kept alive.

    A child calls ``callback(owner, intact)``. ``intact`` is False when another thread held the lock at the fork, so
    the data behind the lock may be half changed.
    """
    _register(owner, attribute, factory, callback)
    return factory()


def run_in_child(owner: _Owner, callback: Callable[[_Owner], None]) -> None:
    """Call ``callback(owner)`` in each child, for example to drop connections. ``owner`` is not kept alive."""
    _register(owner, "", None, lambda owner, _: callback(owner))


def check_process() -> None:
    """Run the callbacks now if this process was forked without Python's hooks. Costs one call of ``os.getpid``."""
    if os.getpid() != process:
        with _checking:
            if os.getpid() != process:
                _in_child()


def _register(
    owner: Any, attribute: str, factory: Callable[[], _Lock] | None, callback: Callable[[Any, bool], None] | None
) -> None:
    number, forget = next(_numbers), _entries.pop
    _entries[number] = _Registration(ref(owner, lambda _: forget(number, None)), attribute, factory, callback)


def _live() -> Iterator[tuple[Any, _Registration, _Lock | None]]:
    """Each entry with its owner and its lock, oldest first. Reads a copy, as other threads may register more."""
    for entry in list(_entries.values()):
        owner = entry.owner()
        lock = getattr(owner, entry.attribute, None)
        if lock or (owner is not None and not entry.factory):
            yield owner, entry, lock


def _before() -> None:
    held = _held[threading.get_ident()] = []
    for _, _, lock in _live():
        if lock and lock.acquire(timeout=_SECONDS):
            held.append(lock)


def _in_parent() -> None:
    for lock in _held.pop(threading.get_ident(), ()):
        lock.release()


def _in_child() -> None:
    global process
    held = _held.pop(threading.get_ident(), [])
    _held.clear()  # locks that other threads of the parent held for forks of theirs
    for owner, entry, lock in _live():
        intact = lock is None or lock in held or lock.acquire(blocking=False)
        if lock and intact:
            lock.release()
        elif entry.factory:
            setattr(owner, entry.attribute, entry.factory())
        if entry.callback:
            entry.callback(owner, intact)
    process = os.getpid()


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows has no fork
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
