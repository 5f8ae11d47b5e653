"""Locks that a forked child finds free, and what they guard whole, whatever other threads were doing at the fork.

A child has one thread; a lock that another one held would stay locked in it for ever. So the locks made here are taken
before each fork of the process, always in one order, and let go in parent and child.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from weakref import ref

__all__ = ["guarded"]

_SECONDS: Final = 1.0
"""What a fork waits for each lock; then the child has a new one, and is told that what it guards may not be whole."""


class _Lock(Protocol):
    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...

    def release(self) -> None: ...


class _Guard(NamedTuple):
    owner: ref[Any]
    name: str
    make: Callable[[], _Lock]
    forked: Callable[[Any, bool], None] | None


_Owner = TypeVar("_Owner")
_Made = TypeVar("_Made", bound=_Lock)
_guards: Final[dict[ref[Any], _Guard]] = {}
_held: Final[dict[int, list[_Lock]]] = {}
"""What each thread that is about to fork holds meanwhile."""


def guarded(
    owner: _Owner, name: str, make: Callable[[], _Made], forked: Callable[[_Owner, bool], None] | None = None
) -> _Made:
    """A lock for the attribute ``name`` of ``owner``, which has one such lock.

    A child calls ``forked(owner, whole)`` before anything else: ``whole`` is False when a thread may have been inside.
    """
    known = ref(owner, _forget)
    _guards[known] = _Guard(known, name, make, forked)
    return make()


def _forget(gone: ref[Any]) -> None:
    _guards.pop(gone, None)


def _all() -> Iterator[tuple[Any, _Guard, _Lock]]:
    """In the order in which they were made. Other threads may add some meanwhile, so from a copy."""
    for guard in list(_guards.values()):
        owner = guard.owner()
        if lock := getattr(owner, guard.name, None):
            yield owner, guard, lock


def _before() -> None:
    held = _held[threading.get_ident()] = []
    for _, _, lock in _all():
        if lock.acquire(timeout=_SECONDS):
            held.append(lock)


def _in_parent() -> None:
    for lock in _held.pop(threading.get_ident(), ()):
        lock.release()


def _in_child() -> None:
    held = _held.pop(threading.get_ident(), [])
    _held.clear()
    for owner, guard, lock in _all():
        whole = lock in held or lock.acquire(blocking=False)
        if whole:
            lock.release()
        else:
            setattr(owner, guard.name, guard.make())
        if guard.forked:
            guard.forked(owner, whole)


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows has no fork
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
