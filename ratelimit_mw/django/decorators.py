"""``limit`` and ``exempt`` as Django's ``method_decorator`` needs them; elsewhere they are those of the package.

``method_decorator`` shows a decorator an empty function, copies what that is marked with to the method, and then has
each request decorate the method anew. So every mark has an attribute of its own, which no other overwrites, and what
is decorated for a request is only checked.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any, Final

from ..rules import marks
from ..rules.marks import AnyView, Mark, ViewMarks

__all__ = ["exempt", "limit", "marked_on"]

_KEPT: Final = "__ratelimit_mw_kept_"
_count = itertools.count()


def limit(limits: Any, **options: Any) -> Callable[[AnyView], AnyView]:
    """Limit a view: a function, a coroutine function or a class; or by ``method_decorator``, a method.

    The options are those of ``Rule``. Raises ``ConfigError`` where it stands for anything that cannot mean something.
    """
    decorate = marks.limit(limits, **options)
    made: list[Mark] = []

    def mark(view: Any) -> Any:
        if _is_bound_for_a_request(view):
            marks.require_decided(made)
            return view
        marked = decorate(view)
        made.append(marks.marks_of(marked).marks[-1])
        return _kept(marked, ViewMarks((made[-1],)))

    return mark


def exempt(*rules: Any) -> Any:
    """Leave a view alone: ``@exempt`` by all rules, ``@exempt("api")`` by the rules named."""
    if len(rules) == 1 and callable(rules[0]):
        return _exempt(marks.exempt, (), rules[0])
    decorate = marks.exempt(*rules)
    return lambda view: _exempt(decorate, rules, view)


def marked_on(thing: object) -> ViewMarks:
    """What is marked on a thing, by any of these ways."""
    attributes = getattr(thing, "__dict__", {}) if not isinstance(thing, type) else {}
    kept = sorted((name for name in attributes if name.startswith(_KEPT)), key=lambda name: int(name[len(_KEPT) :]))
    return marks.view_of([thing, *(attributes[name] for name in kept)])


def _exempt(decorate: Callable[[Any], Any], rules: tuple[str, ...], view: Any) -> Any:
    if _is_bound_for_a_request(view):
        return view
    marked = decorate(view)
    return _kept(marked, ViewMarks((), rules, exempt_on=marks.marks_of(marked).exempt_on))


def _kept(marked: Any, view: ViewMarks) -> Any:
    if not isinstance(marked, type):
        setattr(marked, f"{_KEPT}{next(_count)}", view)
    return marked


def _is_bound_for_a_request(view: object) -> bool:
    """Whether it is what ``method_decorator`` has decorated for each request: a method of the view at hand."""
    return isinstance(view, functools.partial) and inspect.ismethod(view.func) and hasattr(view, "__wrapped__")
