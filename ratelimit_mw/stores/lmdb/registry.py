"""One environment for a path and process, as LMDB demands; what happens to all of them at a fork and at the end."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Final

from ...errors import ConfigError
from .environment import Environment

__all__ = ["environment_at", "let_go"]

_FORK_SECONDS: Final = 1.0
_OPEN: Final[dict[str, Environment]] = {}
_HELD: Final[dict[int, list[Environment]]] = {}
"""What each thread that is about to fork holds meanwhile."""
_registering = threading.Lock()


def environment_at(path: str, size: int, durable: bool) -> Environment:
    """The environment at a path, used by one more; ``ConfigError`` if this process has it with other settings."""
    path = os.path.realpath(path)
    with _registering:
        found = _OPEN.get(path)
        if found is None:
            found = _OPEN[path] = Environment(path, size, durable)
        elif (found.size, found.durable) != (size, durable):
            raise ConfigError(f"this process uses {path} with another size or another durability already")
        found.users += 1
        return found


def let_go(environment: Environment) -> None:
    """One user less; the last one closes it."""
    with _registering:
        environment.users -= 1
        if environment.users == 0:
            del _OPEN[environment.path]
            environment.close()


def _close_all() -> None:
    for environment in _OPEN.values():
        environment.close()


def _before_fork() -> None:
    held = [each for each in list(_OPEN.values()) if each.lock.hold_threads(_FORK_SECONDS)]
    _HELD[threading.get_ident()] = held


def _after_fork_in_parent() -> None:
    for environment in _HELD.pop(threading.get_ident(), ()):
        environment.lock.let_threads()


def _after_fork_in_child() -> None:
    global _registering
    _registering = threading.Lock()
    held = _HELD.pop(threading.get_ident(), [])
    _HELD.clear()
    for environment in _OPEN.values():
        environment.forget_parent(environment in held)


atexit.register(_close_all)
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
