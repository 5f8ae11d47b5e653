"""``limit`` and ``exempt`` for Django. They also work with ``method_decorator``; otherwise they are the common ones.

``method_decorator`` decorates an empty function, copies its attributes to the method, and decorates the method again
for each request. So each mark has an attribute of its own, and decorating for a request only checks the marks.
"""

import inspect
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Unpack, overload

from ..rules import decorators, marks
from ..rules.declaration import document
from ..rules.decorators import AnyView, require_decided
from ..rules.marks import Mark, ViewMarks
from ..rules.options import Limits, RuleOptions

_ATTRIBUTE: Final = "__ratelimit_mw_kept_"
_count = itertools.count()


@document(RuleOptions)
def limit(limits: Limits, **options: Unpack[RuleOptions]) -> Callable[[AnyView], AnyView]:
    """Limit a view: a function, a coroutine function, a class, or a method with ``method_decorator``.

    Raises:
        ConfigError: An option is unknown or impossible, or the decorated object is not a view.

    Example:
        >>> @limit("5/minute", key=["user|ip"])
        ... def report(request): ...
    """
    decorate = decorators.limit(limits, **options)
    added: list[Mark] = []

    def mark(view: Any) -> Any:
        if _is_bound_for_request(view):
            require_decided(added)
            return view
        marked = decorate(view)
        added.append(marks.marks_of(marked).marks[-1])
        return _keep(marked, ViewMarks((added[-1],)))

    return mark


@overload
def exempt(view: AnyView, /) -> AnyView: ...
@overload
def exempt(*rules: str) -> Callable[[AnyView], AnyView]: ...
def exempt(*rules: Any) -> Any:
    """Exempt a view: ``@exempt`` from all rules, ``@exempt("api")`` from the rules named.

    Args:
        *rules: The names of rules; none for all rules.

    Returns:
        The decorator, or the view itself.

    Raises:
        ConfigError: A name is not a string, or the decorated object is not a view.
    """
    if len(rules) == 1 and callable(rules[0]):
        return _exempt(decorators.exempt, (), rules[0])
    return partial(_exempt, decorators.exempt(*rules), rules)


def own_marks(thing: object) -> ViewMarks:
    """Return all marks of an object, in the order of its decorators."""
    attributes = getattr(thing, "__dict__", {}) if not isinstance(thing, type) else {}
    return marks.view_of([thing, *(attributes[name] for name in sorted(attributes) if name.startswith(_ATTRIBUTE))])


def _exempt(decorate: Callable[[Any], Any], rules: tuple[str, ...], view: Any) -> Any:
    if _is_bound_for_request(view):
        return view
    marked = decorate(view)
    return _keep(marked, ViewMarks((), rules, exempt_on=marks.marks_of(marked).exempt_on))


def _keep(marked: Any, view: ViewMarks) -> Any:
    if not isinstance(marked, type):
        setattr(marked, f"{_ATTRIBUTE}{next(_count):09}", view)
    return marked


def _is_bound_for_request(view: object) -> bool:
    """Return whether ``method_decorator`` decorates it for one request: it is then a method bound to the view."""
    return isinstance(view, partial) and inspect.ismethod(view.func) and hasattr(view, "__wrapped__")
