"""The decorators ``limit``, ``exempt`` and ``messages``. They mark a view; the adapter enforces the marks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, Unpack, overload

from ..errors import ConfigError, placed
from .callables import call_site
from .declaration import document
from .guard import AnyView, mark_view
from .marks import Mark, MessageMark, marks_of
from .names import holds_views, name_of, no_view, place_of
from .options import Limits, RuleOptions
from .rule import Rule, one_of


@document(RuleOptions)
def limit(limits: Limits, **options: Unpack[RuleOptions]) -> Callable[[AnyView], AnyView]:
    """Limit a view: a function, a coroutine function, a class or a blueprint.

    The view needs no ``request`` argument. All ``@limit`` on a view and all rules of the settings apply together.

    Raises:
        ConfigError: An option is unknown or impossible. The message has file and line.

    Example:
        >>> @limit("5/minute", key=["ip"])
        ... def login(request): ...
    """
    _check_called(limits, "@limit")
    place = f"@limit at {call_site()}"
    rule = _rule(limits, options, place)

    def mark(view: AnyView) -> AnyView:
        marks, name = marks_of(view), name_of(view, place)
        return mark_view(view, replace(marks, marks=(*marks.marks, Mark(rule, name))))

    return mark


@document(RuleOptions)
def messages(
    limits: Limits, *, over: Literal["close", "drop"] = "close", **options: Unpack[RuleOptions]
) -> Callable[[AnyView], AnyView]:
    """Limit the messages that a WebSocket view receives. Messages that the view sends are not limited.

    A message over the limit closes the connection with code 1013 ("try again later"), or is dropped with
    ``over="drop"``. The other options are those of ``limit``, except for ``count_when`` and concurrency limits.

    Raises:
        ConfigError: An option is unknown or impossible. The message has file and line.
    """
    _check_called(limits, "@messages")
    place = f"@messages at {call_site()}"
    with _placed_at(place), placed("over"):
        one_of(over, "close", "drop")
    rule = _rule(limits, options, place)
    if rule.statuses is not None or any(quota.concurrent for quota in rule.quotas):
        raise ConfigError("count_when and concurrency limits cannot be used for messages", of=place)

    def mark(view: AnyView) -> AnyView:
        marks = marks_of(view)
        mark = MessageMark(rule, name_of(view, place), over)
        return mark_view(view, replace(marks, messages=(*marks.messages, mark)))

    return mark


@overload
def exempt(view: AnyView, /) -> AnyView: ...
@overload
def exempt(*rules: str) -> Callable[[AnyView], AnyView]: ...
def exempt(*rules: Any) -> Any:
    """Exclude a view from all rules with ``@exempt``, or from the rules named with ``@exempt("api")``.

    Raises:
        ConfigError: An argument is neither a view nor the name of a rule.
    """
    if len(rules) == 1 and (callable(rules[0]) or holds_views(rules[0])):
        return _exempt(rules[0], ())
    place = f"@exempt at {call_site()}"
    for name in rules:
        if not isinstance(name, str):
            raise ConfigError(f"expected names of rules; got {name!r}", of=place)
    return functools.partial(_exempt, rules=rules, place=place)


def make_mark(limits: Limits, options: RuleOptions, where: str, of: str = "@limit") -> Mark:
    """Build the mark of a decorator or a dependency at ``where``."""
    return Mark(_rule(limits, options, f"{of} on {where}"), where)


def _rule(limits: Limits, options: RuleOptions, place: str) -> Rule:
    with _placed_at(place):
        rule = Rule(limits=limits, **options)
    if rule.matches.paths:
        raise ConfigError("a decorated view has the path of its route. Remove match.path", "match.path", place)
    return rule


@contextmanager
def _placed_at(place: str) -> Iterator[None]:
    """Put the place of a decorator in front of a ``ConfigError`` raised inside."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(error.message, error.path, place) from None


def _exempt(view: Any, rules: tuple[str, ...], place: str = "") -> Any:
    if not callable(view) and not holds_views(view):
        raise no_view(view, place)
    return mark_view(view, replace(marks_of(view), exempt=rules, exempt_on=place_of(view)))


def _check_called(limits: object, of: str) -> None:
    if callable(limits):
        raise ConfigError(f'expected {of}("5/minute"), with its limits', of=f"{of} on {place_of(limits)}")
