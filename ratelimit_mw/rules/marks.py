"""Marks: the notes of ``@limit``, ``@exempt`` and ``@messages`` on a view, and how adapters read them.

The guard around a limited view raises an error for a limit that no middleware has decided, so that none goes missing.
"""

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, ClassVar, Final
from weakref import WeakSet

from ..errors import MissingMiddlewareError
from ..keys.features import UNMATCHED
from ..testmode import testmode
from .names import ascii_name, class_behind, holds_views
from .rule import Rule

ATTRIBUTE: Final = "__ratelimit_mw__"  # of a marked view; holds its ``ViewMarks``. Numbered: those of one decorator
MARKED_FORM: Final = "__ratelimit_mw_marked_form__"  # of a function; holds the marked function made from it
_order = itertools.count()
_count = itertools.count()


@dataclass(eq=False)
class Mark:
    """One ``@limit``: its rule, and the name of its view. An adapter may change the name before it adopts the mark.

    ``place`` has the file and line of the decorator.
    """

    source: ClassVar[str] = "@limit"
    """The origin of the rule, in words."""
    rule: Rule
    view: str
    order: int = field(default_factory=_order.__next__, kw_only=True)
    place: str = field(default="", kw_only=True)


@dataclass(eq=False)
class MessageMark(Mark):
    """One ``@messages``. ``over`` is the action for a message over the limit: "close" or "drop"."""

    source: ClassVar[str] = "@messages"
    over: str


@dataclass(frozen=True)
class ViewMarks:
    """All marks of a view. ``exempt`` names the rules that do not apply; ``()`` means all of them, None means none."""

    marks: tuple[Mark, ...] = ()
    exempt: tuple[str, ...] | None = None
    messages: tuple[MessageMark, ...] = ()
    exempt_on: str = field(default="", compare=False)
    """The view that has the ``@exempt``."""
    answers_options: bool = False
    """Whether the framework responds to ``OPTIONS`` automatically. Only rules that name the method then apply to it."""
    is_static: bool = False
    """Whether it is a page or a file of the framework or this package. Only rules that name a path or a view apply."""
    inside: tuple[Mark, ...] = ()
    """The marks inside a blueprint or a class that is exempt from every rule. They apply."""
    all_marks: tuple[Mark, ...] = field(init=False, compare=False, repr=False)
    """The marks of requests and of messages."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "all_marks", (*self.marks, *self.messages))
        if self.exempt:
            object.__setattr__(self, "exempt", tuple(map(ascii_name, self.exempt)))

    def is_exempt_from(self, rule: str, marks: Iterable[Mark] = ()) -> bool:
        """Return whether a rule does not apply. The rule is from these marks, or from the settings."""
        if self.exempt is None:
            return False
        return rule in self.exempt if self.exempt else set(self.inside).isdisjoint(marks)


OWN_PAGE: Final = ViewMarks(is_static=True)
"""The marks of a page of this package. Its users must not lock themselves out of it."""


def unconverted(_feature: str, value: Any) -> Any:
    """Return the value of a feature as it is: only FastAPI converts texts before a view gets them."""
    return value


@dataclass(frozen=True, eq=False)
class Destination:
    """Where a request goes. Plans are cached by it, so adapters keep one object for each route and its marks."""

    endpoint: str | None = None
    """The template of the route; ``UNMATCHED`` without a route, None where routes are not known."""
    view: str = ""
    """The framework's name of the route or view, by which ``match.view`` finds it."""
    marks: ViewMarks | None = None
    ends: bool = True
    """Whether the route takes the whole path. False where another application routes the rest."""
    is_expression: bool = False
    """Whether the route is a regular expression, so that its template may differ from its paths."""
    unprefixed: str = ""
    """The template in the default language, where this language has no prefix."""
    suffix: str = ""
    """The parameter for the format suffix. Such a route has the template of the same route without the suffix."""
    convert: Callable[[str, Any], Any] = unconverted
    """Returns the value of a feature as the framework converts it; one that is missing or invalid as it is."""
    function: str = ""
    """The name of the view for keys, one for all its routes and methods. Default: ``view``, else ``UNMATCHED``."""
    template: str | None = field(init=False)
    """The endpoint where it is a template of the whole path, else None."""
    is_exact: bool = field(init=False)
    """Whether the route has one path, the template, so that the path is unambiguous."""

    def __post_init__(self) -> None:
        template = self.endpoint if self.ends and self.endpoint != UNMATCHED else None
        object.__setattr__(self, "function", self.function or self.view or UNMATCHED)
        object.__setattr__(self, "template", template)
        object.__setattr__(self, "is_exact", template is not None and "{" not in template and not self.is_expression)

    def without_suffix(self, path: str, params: Mapping[str, object]) -> str:
        """Return a path of the route without its format suffix: "/users" for "/users.json"."""
        return path.rstrip("/").removesuffix(f".{params.get(self.suffix)}") if self.suffix else path


NOWHERE: Final = Destination()
"""The destination of a request whose route is not known."""
NO_ROUTE: Final = Destination(UNMATCHED)
"""The destination of a request that no route matches."""

mark_readers: Final = WeakSet[Any]()
"""The adapters whose views may get marks while they serve, so that they ``forget_marks``: those of a blueprint."""


def marks_of(view: object) -> ViewMarks:
    """Read the marks of a function, a class, a method, or a function that a framework made from a class."""
    if isinstance(view, ViewMarks):
        return view
    marks: ViewMarks = getattr(view, ATTRIBUTE, None) or ViewMarks()
    behind = class_behind(view)
    return marks if behind is None else combine_marks(marks_of(behind), marks)


def own_marks(thing: object) -> ViewMarks:
    """Merge the marks of all decorators on an object. ``method_decorator`` copies them one by one."""
    attributes = getattr(thing, "__dict__", {})
    each = [*(attributes[name] for name in sorted(attributes) if name.startswith(ATTRIBUTE)), thing]
    return functools.reduce(combine_marks, map(marks_of, each))


def merge_marks(views: Iterable[object]) -> ViewMarks:
    """Merge the marks of everything on the way to a view, outermost first, such as a blueprint and its view."""
    return functools.reduce(_enclose, map(marks_of, views), ViewMarks())


def combine_marks(first: ViewMarks, second: ViewMarks) -> ViewMarks:
    """Return all marks of both objects, each once. The exemption of the second object replaces that of the first."""
    exempting = second if second.exempt is not None else first
    return ViewMarks(
        tuple(dict.fromkeys((*first.marks, *second.marks))),
        exempting.exempt,
        tuple(dict.fromkeys((*first.messages, *second.messages))),
        exempting.exempt_on,
        is_static=first.is_static or second.is_static,
        inside=exempting.inside,
    )


def _enclose(outer: ViewMarks, inner: ViewMarks) -> ViewMarks:
    """Return the marks of a view inside another. Where the outer one is exempt, the limits of the inner one remain."""
    combined = combine_marks(outer, inner)
    remain = outer.exempt == () and inner.exempt is None
    return replace(combined, inside=(*outer.inside, *inner.all_marks)) if remain else combined


def attach_marks(thing: object, marks: ViewMarks, added: ViewMarks) -> None:
    """Keep all marks on an object, and the added ones apart. An exempt blueprint keeps its own limits."""
    if marks.exempt == () and holds_views(thing):
        marks = replace(marks, inside=marks.all_marks)
    setattr(thing, ATTRIBUTE, marks)
    setattr(thing, f"{ATTRIBUTE}{next(_count):09}", added)
    for reader in tuple(mark_readers) if holds_views(thing) else ():
        reader.forget_marks()


def marked_form(view: object) -> Any:
    """Return the marked function made from this one, when the decorator is above the one that took the view.

    A decorator gives its function's name to its result. A function that still has its own name in its module was
    marked by a call, for one route, so it has no marked form.
    """
    form = getattr(view, MARKED_FORM, None)
    module = sys.modules.get(getattr(view, "__module__", None) or "")
    return None if form is not None and getattr(module, form.__name__, None) is view else form


_DISPATCHERS: Final = ("dispatch", "dispatch_request")  # of class-based views in Starlette and Django, and in Flask

current_admission: ContextVar[Any] = ContextVar("ratelimit_mw.current", default=None)
"""The admission of this thread or task. Its ``marks`` are the limits that a middleware has decided."""
# Bound once: for an imported object, Python builds a bound method at each call.
get_admission: Final = current_admission.get
set_admission: Final = current_admission.set


def require_decided(marks: Collection[Mark], is_one_enough: bool = False) -> None:
    """Raise ``MissingMiddlewareError`` unless the marks are decided. One is enough for marks on several views."""
    admission = get_admission()
    undecided = [mark for mark in marks if admission is None or mark not in admission.marks]
    if undecided and not testmode.off and not (is_one_enough and len(undecided) < len(marks)):
        raise MissingMiddlewareError(undecided[0].view, is_handled=admission is not None)


def guard_view(view: Any, marked_on: Callable[..., object] | None = None) -> Any:
    """Put the guard around a view, whose signature stays the same. ``marked_on`` finds another marked object."""
    guarded: Any

    def require(args: tuple[Any, ...]) -> None:
        require_decided(getattr(marked_on(*args) if marked_on else guarded, ATTRIBUTE).all_marks)

    if inspect.iscoroutinefunction(view):

        async def acall(*args: Any, **kwargs: Any) -> Any:
            require(args)
            return await view(*args, **kwargs)

        guarded = acall
    else:

        def call(*args: Any, **kwargs: Any) -> Any:
            require(args)
            return view(*args, **kwargs)

        guarded = call
    # FastAPI evaluates annotations that are text with the globals of the function that has them.
    if isinstance(view, FunctionType):
        guarded = FunctionType(guarded.__code__, view.__globals__, None, None, guarded.__closure__)
    return functools.wraps(view)(guarded)


def guard_blueprint(blueprint: Any) -> None:
    """Put the guard before the views of a blueprint. An application may get its middleware after its mark."""
    if not (hasattr(blueprint, ATTRIBUTE) or hasattr(blueprint, "wsgi_app")):
        before = blueprint.before_request_funcs.setdefault(None, [])
        before.append(lambda: require_decided(marks_of(blueprint).all_marks))


def guard_entries(view: type) -> None:
    """Put the guard around the methods that enter a class-based view."""
    for name in _DISPATCHERS:
        if hasattr(view, name) and ATTRIBUTE not in vars(view):
            setattr(view, name, guard_view(getattr(view, name), lambda self, *_: type(self)))
