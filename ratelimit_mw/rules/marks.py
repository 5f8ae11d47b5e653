"""The decorators ``limit``, ``exempt`` and ``messages``: they mark a view, and the adapter that sees it enforces.

A marked function rejects to run in a request in which nobody decided its limits: a limit is never silently absent.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from types import FunctionType
from typing import Any, Final, TypeVar

from ..errors import ConfigError, MissingMiddlewareError, placed
from ..testmode import testmode
from .callables import caller
from .names import class_behind, holds_views, name_of, no_view, place_of, printable
from .rule import Rule, one_of

__all__ = [
    "Mark",
    "MessageMark",
    "ViewMarks",
    "require_decided",
    "decided",
    "exempt",
    "limit",
    "make_mark",
    "marked_form",
    "marks_of",
    "messages",
    "undecided",
    "view_of",
]

_ATTRIBUTE: Final = "__ratelimit_mw__"
_MARKED_FORM: Final = "__ratelimit_mw_marked_form__"
_DISPATCHERS: Final = ("dispatch", "dispatch_request")
"""The methods by which Starlette and Django, and Flask, enter a class for each request."""
_OPTIONS: Final = [found.name for found in fields(Rule) if found.init and found.name != "limits"]
_order = itertools.count()
_decided: ContextVar[frozenset[Mark]] = ContextVar("ratelimit_mw.decided", default=frozenset())

AnyView = TypeVar("AnyView", bound=Callable[..., Any])


@dataclass(eq=False)
class Mark:
    """One ``@limit``: its rule, the view it stands on, and when it was put there, counted from the first.

    Adapters that know better what the view is called may say so, before the mark is adopted.
    """

    rule: Rule
    view: str
    order: int


@dataclass(eq=False)
class MessageMark(Mark):
    """One ``@messages``. ``over`` says what becomes of a message too many: "close" or "drop"."""

    over: str


@dataclass(frozen=True)
class ViewMarks:
    """What is marked on a view. ``exempt`` names the rules that leave it alone, () means all; None: none do."""

    marks: tuple[Mark, ...] = ()
    exempt: tuple[str, ...] | None = None
    messages: tuple[MessageMark, ...] = ()
    exempt_on: str = field(default="", compare=False)
    """The view that the exemption stands on."""

    def __post_init__(self) -> None:
        if self.exempt:  # as rules are called
            object.__setattr__(self, "exempt", tuple(map(printable, self.exempt)))


def limit(limits: Any, **options: Any) -> Callable[[AnyView], AnyView]:
    """Limit a view: a function, a coroutine function or a class; or a blueprint. The options are those of ``Rule``.

    The rule is called ``module.qualname`` of the view unless ``name`` is given, and needs no ``request`` argument.
    Raises ``ConfigError`` for anything that cannot mean something, with the file and line that it stands in.
    """
    _check_called(limits, "@limit")
    place = f"@limit at {caller()}"
    rule = _rule(limits, options, place)

    def mark(view: AnyView) -> AnyView:
        known, name = marks_of(view), name_of(view, place)
        return _marked(view, replace(known, marks=(*known.marks, Mark(rule, name, next(_order)))))

    return mark


def messages(limits: Any, *, over: str = "close", **options: Any) -> Callable[[AnyView], AnyView]:
    """Limit the messages that a WebSocket view receives; what it sends is not limited.

    A message too many is dropped with ``over="drop"``; else the connection is closed with code 1013, "try again
    later". The other options are those of ``limit``, but for what a single message cannot have: an outcome or a slot.
    """
    _check_called(limits, "@messages")
    place = f"@messages at {caller()}"
    with _standing(place), placed("over"):
        one_of(over, "close", "drop")
    rule = _rule(limits, options, place)
    if rule.statuses is not None or any(quota.concurrent for quota in rule.quotas):
        raise ConfigError("a message has no status and takes no slot", of=place)

    def mark(view: AnyView) -> AnyView:
        known = marks_of(view)
        found = MessageMark(rule, name_of(view, place), next(_order), over)
        return _marked(view, replace(known, messages=(*known.messages, found)))

    return mark


def make_mark(limits: Any, options: Mapping[str, Any], where: str, of: str = "@limit") -> Mark:
    """The mark of one decorator or dependency; ``ConfigError`` for a rule that cannot stand there."""
    return Mark(_rule(limits, options, f"{of} on {where}"), where, next(_order))


def _rule(limits: Any, options: Mapping[str, Any], place: str) -> Rule:
    with _standing(place):
        for name in options:
            with placed(f"option {name!r}"):
                one_of(name, *_OPTIONS)
        rule = Rule(limits=limits, **options)
    if rule.matches.paths:
        raise ConfigError("a view has its path from its route", "match.path", place)
    return rule


@contextmanager
def _standing(place: str) -> Iterator[None]:
    """What goes wrong in here is a mistake of the decorator at ``place``."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(error.message, error.path, place) from None


def exempt(*rules: Any) -> Any:
    """Leave a view alone: ``@exempt`` by all rules, ``@exempt("api")`` by the rules named."""
    if len(rules) == 1 and (callable(rules[0]) or holds_views(rules[0])):
        return _exempted(rules[0], ())
    place = f"@exempt at {caller()}"
    for name in rules:
        if not isinstance(name, str):
            raise ConfigError(f"expected names of rules; got {name!r}", of=place)

    return functools.partial(_exempted, rules=rules, place=place)


def _exempted(view: Any, rules: tuple[str, ...], place: str = "") -> Any:
    if not callable(view) and not holds_views(view):
        raise no_view(view, place)
    return _marked(view, replace(marks_of(view), exempt=rules, exempt_on=place_of(view)))


def _check_called(limits: object, of: str) -> None:
    if callable(limits):
        raise ConfigError(f'expected {of}("5/minute"), with its limits', of=f"{of} on {place_of(limits)}")


def marks_of(view: object) -> ViewMarks:
    """What is marked on a function, a class, a method, or a function that a framework made of a class."""
    if isinstance(view, ViewMarks):
        return view
    found: ViewMarks = getattr(view, _ATTRIBUTE, None) or ViewMarks()
    behind = class_behind(view)
    return found if behind is None else _together(marks_of(behind), found)


def view_of(views: Iterable[object]) -> ViewMarks:
    """What is marked on several things that a request passes through, such as blueprint and view."""
    return functools.reduce(_together, map(marks_of, views), ViewMarks())


def _together(outer: ViewMarks, inner: ViewMarks) -> ViewMarks:
    """All marks of both, each once; the inner one's exemption, where it has one."""
    exempting = inner if inner.exempt is not None else outer
    return ViewMarks(
        tuple(dict.fromkeys((*outer.marks, *inner.marks))),
        exempting.exempt,
        tuple(dict.fromkeys((*outer.messages, *inner.messages))),
        exempting.exempt_on,
    )


def marked_form(view: object) -> Any:
    """The marked function that was made of this one, where the decorator stands above what took the view; or None.

    A decorator leaves its function's name to what it made. Who still has its name was marked by a call, for one route.
    """
    form = getattr(view, _MARKED_FORM, None)
    module = sys.modules.get(getattr(view, "__module__", None) or "")
    return None if form is not None and getattr(module, form.__name__, None) is view else form


def decided(view: ViewMarks) -> frozenset[Mark]:
    """For adapters: the limits marked on ``view`` are taken care of in this request. Returns what was before."""
    before = _decided.get()
    _decided.set(before.union(view.marks, view.messages))
    return before


def undecided(before: frozenset[Mark]) -> None:
    """For adapters whose threads serve one request after the other: the request for which ``decided`` spoke is over."""
    _decided.set(before)


def require_decided(marks: Iterable[Mark]) -> None:
    """For decorators that stand for several views: ``MissingMiddlewareError`` unless one of the marks is decided."""
    marks = tuple(marks)
    if _decided.get().isdisjoint(marks) and not testmode.off:
        raise MissingMiddlewareError(marks[0].view)


def _marked(view: AnyView, marks: ViewMarks) -> AnyView:
    guarded = view
    if inspect.isclass(view):
        _guard_dispatcher(view)
    elif not holds_views(view) and not hasattr(view, _ATTRIBUTE):
        guarded = _create_lock(view)
        for function in _wrapped_by(guarded):
            setattr(function, _MARKED_FORM, guarded)
    setattr(guarded, _ATTRIBUTE, marks)
    return guarded


def _wrapped_by(view: object) -> Iterator[FunctionType]:
    """The functions that a decorated one was made of, the outermost first."""
    while isinstance(view := getattr(view, "__wrapped__", None), FunctionType):
        yield view


def _create_lock(view: AnyView, marked_on: Callable[..., object] | None = None) -> AnyView:
    """The view behind a check that its limits were decided. Keeps signature, name, kind and globals.

    ``marked_on`` tells from the arguments what is marked, where that is not the function itself.
    """
    guarded: Any

    def check(args: tuple[Any, ...]) -> None:
        _check(marked_on(*args) if marked_on else guarded)

    if inspect.iscoroutinefunction(view):

        async def acalled(*args: Any, **kwargs: Any) -> Any:
            check(args)
            return await view(*args, **kwargs)

        guarded = acalled
    else:

        def called(*args: Any, **kwargs: Any) -> Any:
            check(args)
            return view(*args, **kwargs)

        guarded = called
    # Annotations kept as text are read with the globals of the function that has them: FastAPI looks there.
    if isinstance(view, FunctionType):
        guarded = FunctionType(guarded.__code__, view.__globals__, None, None, guarded.__closure__)
    guarded = functools.wraps(view)(guarded)
    return guarded  # type: ignore[no-any-return]


def _guard_dispatcher(view: type) -> None:
    """Have a class that is entered for each request check that its limits were decided."""
    for name in _DISPATCHERS if _ATTRIBUTE not in vars(view) else ():
        if (dispatch := getattr(view, name, None)) is not None:
            setattr(view, name, _create_lock(dispatch, lambda self, *_: type(self)))


def _check(view: object) -> None:
    known: ViewMarks = getattr(view, _ATTRIBUTE)
    marks = (*known.marks, *known.messages)
    if not _decided.get().issuperset(marks) and not testmode.off:
        raise MissingMiddlewareError(marks[0].view)
