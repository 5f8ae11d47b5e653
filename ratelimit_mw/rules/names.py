"""Names of rules and views. A rule's name is printable ASCII, so that it fits into HTTP header fields. Pure."""

import functools
import inspect
import re
from collections.abc import Iterator
from typing import Any

from ..errors import ConfigError

_RULE_NAME = re.compile(r"[\x21-\x7e]{1,200}")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


def checked_rule_name(name: object) -> str | None:
    """Return a rule's name, or None for no name; ``ConfigError`` when the name is not valid."""
    if name is not None and not (isinstance(name, str) and _RULE_NAME.fullmatch(name)):
        raise ConfigError(f"expected 1 to 200 printable ASCII characters without spaces; got {name!r}")
    return name


def ascii_name(name: str) -> str:
    r"""Escape all characters that are not printable ASCII, as Python does.

    >>> print(ascii_name("shop.größe"), ascii_name(ascii_name("shop.größe")))
    shop.gr\xf6\xdfe shop.gr\xf6\xdfe
    """
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), name)


def holds_views(view: object) -> bool:
    """Return whether it is a blueprint or an application of Flask: it is marked for all its views and never called."""
    return not inspect.isclass(view) and isinstance(getattr(view, "import_name", None), str)


def name_of(view: Any) -> str | None:
    """Name a view as "module.qualname"; None for an object that has no name."""
    if holds_views(view):
        return f"{view.import_name}.{view.name}"
    name = getattr(view, "__qualname__", None)
    if not callable(view) or name is None:
        return None
    own_name = getattr(view, "__name__", name)  # Flask renames the function that it makes from a class
    if name.rpartition(".")[2] != own_name:
        return f"{view.__module__}.{own_name}"
    behind = class_behind(view)  # Django gives the functions of all classes one name
    return f"{view.__module__}.{name}" if behind is None else name_of(behind)


def class_behind(view: object) -> type | None:
    """Return the class from which a framework made this function; None for any other object."""
    behind = getattr(view, "view_class", None) or getattr(view, "cls", None)
    return behind if inspect.isclass(behind) and behind is not view else None


def views_behind(view: Any) -> Iterator[Any]:
    """Yield a view, and those inside the decorators around it."""
    while view is not None:
        yield view
        view = getattr(view, "__wrapped__", None)


def owners_of(view: object) -> list[type]:
    """Return the class of the object whose method a view is, alone or as ``partial``, in a list; else an empty list."""
    method = view.func if isinstance(view, functools.partial) else view
    owners = [layer.__self__ for layer in views_behind(method) if inspect.ismethod(layer)]
    return [owner if inspect.isclass(owner) else type(owner) for owner in owners]
