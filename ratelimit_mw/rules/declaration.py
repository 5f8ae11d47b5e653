"""Declarations of options: a ``TypedDict`` whose annotations hold the default and the meaning of each option.

Decoding, the JSON schema, the tables in the docs, docstrings and type hints all read the same declaration.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar, get_type_hints

import msgspec

from ..errors import ConfigError, suggestion

Documented = TypeVar("Documented")


def option(meaning: str, default: Any = None, **schema: Any) -> msgspec.Meta:
    """Declare the meaning and the default of an option, for use in ``Annotated``."""
    return msgspec.Meta(
        description=meaning,
        extra={"default": default},
        extra_json_schema={**({} if default is None else {"default": default}), **schema},
    )


def hints_of(declaration: Any) -> dict[str, Any]:
    """The annotation of every option."""
    return get_type_hints(declaration, include_extras=True)


def defaults_of(declaration: Any) -> dict[str, Any]:
    """The default of every option, as a settings file would write it."""
    return {name: hint.__metadata__[-1].extra["default"] for name, hint in hints_of(declaration).items()}


def meaning_of(hint: Any) -> str:
    """The meaning of the option with this annotation."""
    return str(hint.__metadata__[-1].description)


def check_names(options: Iterable[object], known: Collection[object], what: str = "option") -> None:
    """``ConfigError`` for an option that is not known, with a suggestion."""
    for name in options:
        if name not in known:
            path = name if isinstance(name, str) and name.isprintable() else repr(name)
            raise ConfigError(f"unknown {what}{suggestion(name, map(str, known))}", path)


def document(declaration: Any) -> Callable[[Documented], Documented]:
    """Add the options of a declaration to a docstring, as its ``Args``."""

    def add(thing: Documented) -> Documented:
        lines = [f"    {name}: {meaning_of(hint)}" for name, hint in hints_of(declaration).items()]
        text, raises, rest = inspect.cleandoc(thing.__doc__ or "").partition("Raises:")
        thing.__doc__ = "\n".join([text.rstrip(), "", "Args:", *lines, "", raises + rest]).rstrip()
        return thing

    return add
