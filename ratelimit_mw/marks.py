"""The decorators ``limit`` and ``exempt``: they mark a view, and the adapter that sees it enforces.

A marked function refuses to run in a request in which nobody decided its limits: a limit is never silently absent.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from .errors import ConfigError, MissingMiddlewareError
from .rules import Rule
from .switch import switch

__all__ = ["Mark", "View", "decided", "exempt", "limit", "marks_of", "view_of"]

_ATTRIBUTE: Final = "__ratelimit_mw__"
_order = itertools.count()
_decided: ContextVar[frozenset[Mark]] = ContextVar("ratelimit_mw.decided", default=frozenset())

AnyView = TypeVar("AnyView", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class Mark:
    """One ``@limit``: its rule, the view it stands on, and when it was put there, counted from the first."""

    rule: Rule
    view: str
    order: int


@dataclass(frozen=True)
class View:
    """What is marked on a view. ``exempt`` names the rules that leave it alone, () means all; None: none do."""

    marks: tuple[Mark, ...] = ()
    exempt: tuple[str, ...] | None = None


def limit(limits: Any, **options: Any) -> Callable[[AnyView], AnyView]:
    """Limit a view: a function, a coroutine function or a class. The options are those of ``Rule``.

    The rule is called ``module.qualname`` of the view unless ``name`` is given, and needs no ``request`` argument.
    Raises ``ConfigError`` where it stands for anything that cannot mean something.
    """

    def mark(view: AnyView) -> AnyView:
        where = _name_of(view)
        try:
            rule = Rule(limits=limits, **options)
        except ConfigError as error:
            raise ConfigError(error.message, error.path, f"@limit on {where}") from None
        if rule.matches.paths:
            raise ConfigError("a view has its path from its route", "match.path", f"@limit on {where}")
        known = marks_of(view)
        return _marked(view, View((*known.marks, Mark(rule, where, next(_order))), known.exempt))

    return mark


def exempt(*rules: Any) -> Any:
    """Leave a view alone: ``@exempt`` by all rules, ``@exempt("api")`` by the rules named."""
    if len(rules) == 1 and callable(rules[0]):
        return _marked(rules[0], View(marks_of(rules[0]).marks, ()))
    for name in rules:
        if not isinstance(name, str):
            raise ConfigError(f"expected names of rules; got {name!r}", of="@exempt")

    def mark(view: AnyView) -> AnyView:
        known = marks_of(view)
        return _marked(view, View(known.marks, tuple(rules)))

    return mark


def marks_of(view: object) -> View:
    """What is marked on a function, a class, a method, or a function that a framework made of a class."""
    found: View = getattr(view, _ATTRIBUTE, None) or View()
    behind = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if behind is None or behind is view:
        return found
    inner = marks_of(behind)
    marks = dict.fromkeys((*found.marks, *inner.marks))
    return View(tuple(marks), found.exempt if found.exempt is not None else inner.exempt)


def view_of(views: Iterable[object]) -> View:
    """What is marked on several things that a request passes through, such as blueprint and view."""
    marks: dict[Mark, None] = {}
    exemption: tuple[str, ...] | None = None
    for view in views:
        found = marks_of(view)
        marks |= dict.fromkeys(found.marks)
        exemption = found.exempt if found.exempt is not None else exemption
    return View(tuple(marks), exemption)


def decided(view: View) -> None:
    """For adapters: the limits marked on ``view`` were decided in this request."""
    _decided.set(_decided.get() | frozenset(view.marks))


def _marked(view: AnyView, marks: View) -> AnyView:
    if inspect.isclass(view):
        setattr(view, _ATTRIBUTE, marks)
        return view
    guarded = view if hasattr(view, _ATTRIBUTE) else _guarded(view)
    setattr(guarded, _ATTRIBUTE, marks)
    return guarded


def _guarded(view: AnyView) -> AnyView:
    """The view behind a check that its limits were decided. Keeps signature, name and kind."""
    if inspect.iscoroutinefunction(view):

        @functools.wraps(view)
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            _check(guarded)
            return await view(*args, **kwargs)

    else:

        @functools.wraps(view)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            _check(guarded)
            return view(*args, **kwargs)

    return guarded  # type: ignore[return-value]


def _check(view: object) -> None:
    marks = getattr(view, _ATTRIBUTE).marks
    if not _decided.get().issuperset(marks) and not switch.off:
        raise MissingMiddlewareError(marks[0].view)


def _name_of(view: object) -> str:
    name = getattr(view, "__qualname__", None)
    if not callable(view) or name is None:
        raise ConfigError(f"expected a view, a function or a class; got {view!r}", of="@limit")
    return f"{view.__module__}.{name}"
