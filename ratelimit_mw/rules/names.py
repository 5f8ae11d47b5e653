"""What rules and views are called: rules by a text that fits wherever names go, fields of HTTP among them. Pure."""

from __future__ import annotations

import inspect
import re
from typing import Any

from ..errors import ConfigError

__all__ = ["checked_rule_name", "class_behind", "holds_views", "name_of", "no_view", "place_of", "printable"]

_RULE_NAME = re.compile(r"[\x21-\x7e]{1,200}")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


def checked_rule_name(name: object) -> str | None:
    """A name that is given to a rule, or None; ``ConfigError`` for what none can be."""
    if name is not None and not (isinstance(name, str) and _RULE_NAME.fullmatch(name)):
        raise ConfigError(f"a rule's name is 1 to 200 printable ASCII characters without spaces; got {name!r}")
    return name


def printable(name: str) -> str:
    r"""The name with all that is not printable ASCII escaped as Python does: a view may be called anything.

    >>> print(printable("shop.größe"), printable(printable("shop.größe")))
    shop.gr\xf6\xdfe shop.gr\xf6\xdfe
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), name)


def holds_views(view: object) -> bool:
    """Whether it is a blueprint or an application of Flask's: marked for all its views, called by none."""
    return not inspect.isclass(view) and isinstance(getattr(view, "import_name", None), str)


def place_of(thing: object) -> str:
    """What to call anything that a decorator stands on, in a message."""
    return name_of(thing) if holds_views(thing) or hasattr(thing, "__qualname__") else repr(thing)


def no_view(thing: object, place: str) -> ConfigError:
    """The mistake of a decorator at ``place`` that stands on anything else."""
    return ConfigError(f"expected a view, a function or a class; got {thing!r}", of=place)


def name_of(view: Any, place: str = "") -> str:
    """What a view is called: "module.qualname". ``ConfigError`` for what is none, of the decorator at ``place``."""
    if holds_views(view):
        return f"{view.import_name}.{view.name}"
    name = getattr(view, "__qualname__", None)
    if not callable(view) or name is None:
        raise no_view(view, place)
    given = getattr(view, "__name__", name)  # Flask names the function that it makes of a class
    if name.rpartition(".")[2] != given:
        return f"{view.__module__}.{given}"
    behind = class_behind(view)  # Django names it as those of all other classes
    return f"{view.__module__}.{name}" if behind is None else name_of(behind)


def class_behind(view: object) -> type | None:
    """The class that a framework made a function of; None for anything else."""
    behind = getattr(view, "view_class", None) or getattr(view, "cls", None)
    return behind if inspect.isclass(behind) and behind is not view else None
