"""Check tables against the declaration of the settings, and export the declaration as a JSON Schema."""

import re
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec

from ..errors import ConfigError, error_path
from ..rules.declaration import check_names, hints_of
from ..rules.options import Off
from ..stores import Store
from .options import SettingsDict

_CHECKED_LATER: Final = ("rules", "lists", "defaults", "limits", "observers")
_MAY_BE_SECRET: Final = ("secret", "store")
_INDEX = re.compile(r"`\$\[(\d+)\]`$")
_SCHEMA_FIELD: Final = {"type": "string", "description": "The address of this schema, for editors. Not read."}
_WORDS: Final[dict[Any, str]] = {
    str: "text",
    int: "whole number",
    bool: "true or false",
    Sequence: "list of {}",
    Mapping: "table",
}


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a settings file, for editors."""
    exported = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(SettingsDict)}
    for table in exported["$defs"].values():
        table["additionalProperties"] = False
    exported["$defs"][SettingsDict.__name__]["properties"]["$schema"] = _SCHEMA_FIELD
    return exported


def check_table(table: Mapping[Any, Any]) -> None:
    """``ConfigError`` for an unknown setting, and for a setting whose value has the wrong type."""
    hints = hints_of(SettingsDict)
    check_names(table, hints, "setting")
    for name, value in table.items():
        if name in _CHECKED_LATER or (name == "store" and isinstance(value, Store)):
            continue
        with error_path(name):
            check_type(name, value, hints[name])


def check_type(name: str, value: Any, hint: Any) -> None:
    """Raise ``ConfigError`` for a value of the wrong type. Its path is the item of a list, else empty."""
    try:
        msgspec.convert(value, hint)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        item = _INDEX.search(str(error))
        path = f"[{item[1]}]" if item else ""
        if item:
            lists = (kind for kind in _kinds(hint) if get_origin(kind) is Sequence)
            value, hint = list(value)[int(item[1])], get_args(next(lists))[0]
        got = "" if name in _MAY_BE_SECRET else f"; got {value!r}"
        got = "; got None. Set it, or leave it out" if value is None else got
        expected = type_text(hint)
        article = "" if expected.startswith(("'", "text", "true")) else "a "
        raise ConfigError(f"expected {article}{expected}{got}", path) from None


def _kinds(hint: Any) -> list[Any]:
    """The alternatives of a type, without None."""
    if get_origin(hint) is Annotated and hint != Off:
        return _kinds(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return [kind for part in get_args(hint) if part is not type(None) for kind in _kinds(part)]
    return [hint]


def type_text(hint: Any) -> str:
    """Describe a type in words, such as "text or list of text"."""
    kinds = _kinds(hint)
    if float in kinds:
        return "duration"
    return " or ".join(map(_kind_text, kinds))


def _kind_text(kind: Any) -> str:
    if kind == Off:
        return "false"
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    words = _WORDS.get(get_origin(kind) or kind, "table")
    if "{}" in words:
        items = map(_kind_text, _kinds(get_args(kind)[0]))
        return words.format(" or ".join(item if item.startswith(("'", "text")) else f"{item}s" for item in items))
    return words
