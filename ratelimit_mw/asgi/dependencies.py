"""Annotations kept as text are evaluated once for each route: a limit written there is one limit all the same."""

from __future__ import annotations

from dataclasses import fields
from inspect import isfunction
from typing import Any, Final
from weakref import WeakKeyDictionary

from .routes.match import DependencyLimit

__all__ = ["share"]

_written: Final[WeakKeyDictionary[Any, dict[str, list[DependencyLimit]]]] = WeakKeyDictionary()
"""The limits met in the parameters of a function, by their names; those of one parameter differ in meaning."""


def share(limit: DependencyLimit, function: Any, parameter: str) -> None:
    """Let ``limit`` count with the one that was met at this parameter before, where both mean the same."""
    try:
        known = _written.setdefault(function, {}).setdefault(parameter, [])
    except TypeError:  # a callable object that has no hash, or cannot be forgotten
        return
    for first in known:
        if _meaning(first) == _meaning(limit):
            limit.mark = first.mark
            return
    known.append(limit)


def _meaning(limit: DependencyLimit) -> tuple[object, ...]:
    rule = limit.mark.rule
    options = [_plain(getattr(rule, option.name)) for option in fields(rule) if option.compare]
    return (options, {name: _plain(giver) for name, giver in limit.given.items()})


def _plain(thing: Any) -> object:
    """A value that can be compared: a lambda in the text is another function each time."""
    return (thing.__code__, thing.__defaults__, thing.__closure__) if isfunction(thing) else thing
