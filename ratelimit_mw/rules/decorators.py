"""The decorators ``limit``, ``exempt`` and ``messages``. They mark a view, and guard it from a missing middleware.

``method_decorator`` of Django decorates an empty function, copies its attributes to the method, and decorates the
method again for each request. So each mark has an attribute of its own, and that decoration only checks the marks.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, Literal, Protocol, TypeVar, Unpack, overload
from weakref import WeakSet

from ..errors import ConfigError, error_of
from .declaration import document, options_of
from .marks import (
    ATTRIBUTE,
    MARKED_FORM,
    Mark,
    MessageMark,
    ViewMarks,
    attach_marks,
    combine_marks,
    guard_blueprint,
    guard_entries,
    guard_view,
    marks_of,
    require_decided,
)
from .names import holds_views, name_of
from .options import LIMITS_MEANING, Limits, RuleOptions
from .rule import Rule, check_rule_names

marks_made: Final = WeakSet[Mark]()
"""The marks of all decorators that are in use."""


class HoldsViews(Protocol):  # a blueprint or an application of Flask; a mark on it is for all its views
    import_name: str


AnyView = TypeVar("AnyView", bound=Callable[..., Any] | HoldsViews)


@document(RuleOptions, limits=LIMITS_MEANING)
def limit(limits: Limits, **options: Unpack[RuleOptions]) -> Callable[[AnyView], AnyView]:
    """Limit a view: a function, a coroutine function, a class, a blueprint, or a method with ``method_decorator``.

    The view needs no ``request`` argument. All ``@limit`` on a view and all rules of the settings apply together.
    Views with the same ``limit(...)`` object share its count, unless its key has ``endpoint``.

    Returns:
        A decorator, for one view or several. The view that it returns has the same signature.

    Raises:
        ConfigError: An option is unknown or impossible. The message has file and line.

    Example:
        >>> @limit("5/minute", key=["ip"])
        ... def login(request): ...
    """
    place = _place("@limit", limits, options)
    rule = _rule(limits, options, place)
    added: list[Mark] = []

    def mark(view: AnyView) -> AnyView:
        if added and _is_bound_for_request(view):
            require_decided(added, is_one_enough=True)
            return view
        added.append(Mark(rule, _checked_name(view, name_of(view), place), place=place))
        marks_made.add(added[-1])
        return mark_view(view, ViewMarks((added[-1],)))

    return mark


@document(RuleOptions, limits=LIMITS_MEANING, over='The action over the limit: `"close"` or `"drop"`.')
def messages(
    limits: Limits, *, over: Literal["close", "drop"] = "close", **options: Unpack[RuleOptions]
) -> Callable[[AnyView], AnyView]:
    """Limit the messages that a WebSocket view receives. Messages that the view sends are not limited.

    A message over the limit closes the connection with code 1013 ("try again later"). With ``over="drop"``, the message
    is dropped. ``cost`` may be a function of the message, a ``str`` or ``bytes``. The other options are those of
    ``limit``, except for ``count_when``, ``count_unless`` and concurrency limits.

    Returns:
        A decorator. The view that it returns has the same signature.

    Raises:
        ConfigError: An option is unknown or impossible. The message has file and line.
    """
    place = _place("@messages", limits, options)
    if over not in ("close", "drop"):
        raise ConfigError(f"expected 'close' or 'drop'; got {over!r}", "over", place)
    with error_of(place):
        check_rule_names(options, (*options_of(RuleOptions), "over"))
    rule = _rule(limits, options, place)
    if rule.statuses is not None or any(quota.concurrent for quota in rule.quotas):
        raise ConfigError("count_when, count_unless and concurrency limits cannot be used for messages", of=place)

    def mark(view: AnyView) -> AnyView:
        mark = MessageMark(rule, _checked_name(view, name_of(view), place), over)
        marks_made.add(mark)
        return mark_view(view, ViewMarks(messages=(mark,)))

    return mark


@overload
def exempt(view: AnyView, /) -> AnyView: ...
@overload
def exempt(*rules: str) -> Callable[[AnyView], AnyView]: ...
def exempt(*rules: Any) -> Any:
    """Exclude a view from all rules with ``@exempt``, or from the rules named with ``@exempt("api")``.

    A limit on a view inside an exempt blueprint or class still applies. So does a limit on that blueprint.

    Args:
        rules: The names of rules, or the view. A blueprint is all its views.

    Returns:
        The view, or with names a decorator that returns the view.

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


def call_site() -> str:
    """Return the file and line that called this package, such as "shop/views.py:12"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("ratelimit_mw."):
        frame = frame.f_back
    file = frame.f_code.co_filename
    if file == "<string>" and "__file__" in frame.f_globals:  # an annotation that is kept as text
        return str(frame.f_globals["__file__"])
    return f"{file}:{frame.f_lineno}"


def make_mark(limits: Limits, options: RuleOptions, where: str, place: str = "") -> Mark:
    """Build the mark of a dependency at ``where``."""
    return Mark(_rule(limits, options, where), where, place=place)


def _rule(limits: Limits, options: RuleOptions, place: str) -> Rule:
    with error_of(place):
        rule = Rule(limits=limits, **options)
    if field := rule.matches.route_field:
        raise ConfigError(
            f"a decorated view has the {field} of its route. Remove match.{field}", f"match.{field}", place
        )
    return rule


def _place(decorator: str, limits: object, options: RuleOptions) -> str:
    if callable(limits) and not options:  # without parentheses, the limits would be the view
        name = name_of(limits) or repr(limits)
        message = f'expected {decorator}("5/minute"), with its limits, or {decorator}(function, key=["user"])'
        raise ConfigError(message, of=f"{decorator} on {name}")
    return f"{decorator} at {call_site()}"


def _exempt(view: Any, rules: tuple[str, ...], place: str = "") -> Any:
    if _is_bound_for_request(view):
        return view
    name = _checked_name(view, name_of(view) or (repr(view) if callable(view) else None), place)
    return mark_view(view, ViewMarks(exempt=rules, exempt_on=name))


def _is_bound_for_request(view: object) -> bool:
    """Return whether ``method_decorator`` decorates it for one request: it is then a method bound to the view."""
    return isinstance(view, functools.partial) and inspect.ismethod(view.func) and hasattr(view, "__wrapped__")


def _checked_name(view: object, name: str | None, place: str) -> str:
    if name is None:
        raise ConfigError(f"expected a view, a function or a class; got {view!r}", of=place)
    return name


def mark_view(view: AnyView, added: ViewMarks) -> AnyView:
    """Add marks to a view, and put the guard around the view when it has none."""
    guarded: Any = view
    marks = combine_marks(marks_of(view), added)
    if inspect.isclass(view):
        guard_entries(view)
    elif holds_views(view):
        guard_blueprint(view)
    elif not hasattr(view, ATTRIBUTE):
        wrapped = guarded = guard_view(view)
        while isinstance(wrapped := getattr(wrapped, "__wrapped__", None), FunctionType):
            setattr(wrapped, MARKED_FORM, guarded)
    attach_marks(guarded, marks, added)
    return guarded  # type: ignore[no-any-return]
