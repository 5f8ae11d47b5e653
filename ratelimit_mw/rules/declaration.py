"""Declare options once, in a ``TypedDict``, for decoding, JSON schema, docs, docstrings and type hints; check them."""

import inspect
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar, get_type_hints

import msgspec

from ..errors import ConfigError, suggestion

Documented = TypeVar("Documented")


def option(meaning: str, default: Any = None, **schema: Any) -> msgspec.Meta:
    """Declare the meaning and the default of an option, for use in ``Annotated``."""
    if default is not None:
        schema["default"] = default
    return msgspec.Meta(description=meaning, extra={"default": default}, extra_json_schema=schema)


def hints_of(declaration: Any) -> dict[str, Any]:
    return get_type_hints(declaration, include_extras=True)


def defaults_of(declaration: Any) -> dict[str, Any]:
    """The default of every option, as a settings file would write it."""
    return {name: hint.__metadata__[-1].extra["default"] for name, hint in hints_of(declaration).items()}


def meanings_of(declaration: Any) -> dict[str, str]:
    return {name: hint.__metadata__[-1].description for name, hint in hints_of(declaration).items()}


def document(declaration: Any, **arguments: str) -> Callable[[Documented], Documented]:
    """Add arguments and the options of a declaration to a docstring, as its ``Args``."""

    def add(thing: Documented) -> Documented:
        lines = [f"    {name}: {meaning}" for name, meaning in (arguments | meanings_of(declaration)).items()]
        text, *sections = re.split(r"(?m)^(?=Returns:|Raises:)", inspect.cleandoc(thing.__doc__ or ""), maxsplit=1)
        thing.__doc__ = "\n".join([text.rstrip(), "", "Args:", *lines, "", *sections]).rstrip()
        return thing

    return add


def check_names(options: Iterable[object], known: Collection[object], what: str = "option") -> None:
    """``ConfigError`` for an option that is not known, with a suggestion."""
    for name in options:
        if name not in known:
            path = name if isinstance(name, str) and name.isprintable() else repr(name)
            raise ConfigError(f"unknown {what}{suggestion(name, map(str, known))}", path)


def one_of(value: object, *words: str) -> str:
    """Return the value; ``ConfigError`` unless it is one of the words."""
    if not isinstance(value, str) or value not in words:
        raise ConfigError(f"expected {' or '.join(map(repr, words))}; got {value!r}{suggestion(value, words)}")
    return value


def parse_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"expected true or false; got {value!r}")
    return value


def checked_call(function: Any, *arguments: str) -> Callable[..., Any]:
    """Return the function; ``ConfigError`` unless it can be called with these arguments, given in words.

    >>> checked_call(lambda: "alice", "the request")
    Traceback (most recent call last):
    ...
    ratelimit_mw.errors.ConfigError: expected a function of the request; got <lambda>(): too many positional arguments
    """
    expected = f"expected a function of {' and '.join(arguments)}; got"
    if not callable(function):
        raise ConfigError(f"{expected} {function!r}")
    signature = None
    try:
        signature = inspect.signature(function)
        signature.bind(*arguments)
    except (TypeError, ValueError) as error:
        if signature is not None:  # some functions written in C have no signature
            name = getattr(function, "__name__", repr(function))
            raise ConfigError(f"{expected} {name}{signature}: {error}") from None
    return function  # type: ignore[no-any-return]
