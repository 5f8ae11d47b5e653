"""Declare options once, in a ``TypedDict``: for the decoder below, JSON schema, docs, docstrings and type hints.

Beside its type, an option may have a function that reads its values: ``Annotated[str, parse_timezone, option(...)]``.
It takes any object and checks it, because an option may be an object in Python.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from ..errors import ConfigError, error_path, path_of, suggestion

Documented = TypeVar("Documented")
Parse = Callable[[Any], Any]

_INDEX = re.compile(r"`\$\[(\d+)\]`$")
_WORDS: Final[dict[Any, str]] = {
    str: "text",
    int: "whole number",
    bool: "true or false",
    Sequence: "list of {}",
    Mapping: "table",
}
OFF: Final = msgspec.Meta(extra_json_schema={"enum": [False]})
"""Marks ``bool`` as ``false`` alone. msgspec has a literal of a boolean since 0.22."""


def option(
    meaning: str, default: Any = None, at_start: bool = False, ge: int | None = None, le: int | None = None
) -> msgspec.Meta:
    """Declare an option, for use in ``Annotated``. The default is written as in a settings file.

    One that is read ``at_start`` stays the same when settings are read again.
    """
    schema = None if default is None else {"default": default}
    return msgspec.Meta(
        description=meaning, extra={"default": default, "at_start": at_start}, extra_json_schema=schema, ge=ge, le=le
    )


class Option(NamedTuple):
    """A declared option."""

    hint: Any
    meaning: str
    is_required: bool
    default: Any
    at_start: bool
    read: Parse | None

    def decode(self, value: Any) -> Any:
        """Return a value as it is used; ``ConfigError`` for one that the option cannot have."""
        if value is None and NoneType in kinds_of(self.hint):
            return None
        if self.read is not None:
            return self.read(value)
        check_type(value, self.hint)
        return tuple(value) if isinstance(value, list | set | frozenset) else value


@cache
def options_of(declaration: Any) -> Mapping[str, Option]:
    """Return all options of a declaration, by name."""
    options = {}
    for name, hint in get_type_hints(declaration, include_extras=True).items():
        hint = get_args(hint)[0] if get_origin(hint) is Required else hint
        *others, meta = hint.__metadata__
        read = next(filter(callable, others), None)
        is_required = name in declaration.__required_keys__
        options[name] = Option(hint, meta.description, is_required, read=read, **meta.extra)
    return MappingProxyType(options)


def defaults_of(declaration: Any) -> dict[str, Any]:
    """Return the default of every option, as a settings file would write it."""
    return {name: each.default for name, each in options_of(declaration).items()}


def document(declaration: Any, **arguments: str) -> Callable[[Documented], Documented]:
    """Add arguments and the options of a declaration to a docstring, as its ``Args``."""
    meanings = arguments | {name: each.meaning for name, each in options_of(declaration).items()}

    def add(thing: Documented) -> Documented:
        lines = [f"    {name}: {meaning}" for name, meaning in meanings.items()]
        text, *sections = re.split(r"(?m)^(?=Returns:|Raises:)", inspect.cleandoc(thing.__doc__ or ""), maxsplit=1)
        thing.__doc__ = "\n".join([text.rstrip(), "", "Args:", *lines, "", *sections]).rstrip()
        return thing

    return add


def decode(
    declaration: Any,
    table: Any,
    expected: str = "a table",
    noun: str = "option",
    others: Callable[[Any, Any], None] | None = None,
) -> dict[str, Any]:
    """Return all options as they are used, those that a table lacks with their default.

    ``others`` takes each name that is not declared, with its value. Without it, such a name is an error. The first
    mistake in the table is raised, and its path is the name.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"expected {expected}; got {table!r}")
    options = options_of(declaration)
    if others is None:
        check_names(table, options, noun)
    for name, each in options.items():
        if each.is_required and name not in table:
            raise ConfigError(f"{name} is missing. Expected {expected}")
    decoded = dict(_decoded_defaults(declaration))
    for name, value in table.items():
        with error_path(path_of(name)):
            if others is None or name in options:
                decoded[name] = options[name].decode(value)
            else:
                others(name, value)
    return decoded


@cache
def _decoded_defaults(declaration: Any) -> Mapping[str, Any]:
    options = options_of(declaration).items()
    decoded = {name: each.default if each.default is None else each.decode(each.default) for name, each in options}
    return MappingProxyType(decoded)


def as_given(value: Any) -> Any:
    """Return the value: it depends on other options, and is checked with them."""
    return value


def of_type(hint: Any, parse: Parse) -> Parse:
    """Make a function that reads any object from one that parses a value of a type."""

    def read(value: Any) -> Any:
        check_type(value, hint)
        return parse(value)

    return read


def check_names(options: Iterable[object], known: Collection[object], what: str = "option") -> None:
    """``ConfigError`` for an option that is not known, with a suggestion."""
    for name in options:
        if name not in known:
            raise ConfigError(f"unknown {what}{suggestion(name, map(str, known))}", path_of(name) or repr(name))


def check_type(value: Any, hint: Any, is_secret: bool = False) -> None:
    """Raise ``ConfigError`` for a value of the wrong type or range. Its path is the item of a list, else empty."""
    try:
        msgspec.convert(value, hint)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        path = ""
        if item := _INDEX.search(str(error)):
            path, value = f"[{item[1]}]", list(value)[int(item[1])]
            hint = next(get_args(kind)[0] for kind in kinds_of(hint) if get_origin(kind) is Sequence)
        got = "" if is_secret else f"; got {value!r}"
        got = "; got None. Set it, or leave it out" if value is None else got
        expected = type_text(hint)
        article = "a " if expected.startswith(("whole", "list", "table", "duration")) else ""
        words = [word for kind in kinds_of(hint) if get_origin(kind) is Literal for word in map(str, get_args(kind))]
        close = suggestion(value, words)
        hint_text = close if "Did you mean" in close else ""
        raise ConfigError(f"expected {article}{expected}{got}{hint_text}", path) from None


def type_text(hint: Any) -> str:
    """Describe a type in words, such as "text or list of text"."""
    kinds = [kind for kind in kinds_of(hint) if kind is not NoneType]
    return "duration" if float in kinds else " or ".join(map(_kind_text, kinds))


def kinds_of(hint: Any) -> list[Any]:
    """Return the alternatives of a type. Numbers have their range, and ``false`` is not every boolean."""
    if get_origin(hint) is Annotated:
        narrow = hint.__metadata__[-1]
        return [hint] if narrow is OFF or getattr(narrow, "ge", None) is not None else kinds_of(hint.__origin__)
    if get_origin(hint) in (Union, UnionType):
        return [kind for part in get_args(hint) for kind in kinds_of(part)]
    return [hint]


def _kind_text(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        meta = kind.__metadata__[-1]
        least, most = f" of at least {meta.ge}", f" from {meta.ge} to {meta.le}"
        return "false" if meta is OFF else _kind_text(kind.__origin__) + (least if meta.le is None else most)
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    words = _WORDS.get(get_origin(kind) or kind, "table")
    if "{}" in words:
        items = map(_kind_text, kinds_of(get_args(kind)[0]))
        return words.format(" or ".join(item if item.startswith(("'", "text")) else f"{item}s" for item in items))
    return words


def is_async(function: object) -> bool:
    """Return whether a function, or an object that is called as one, is async."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


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
