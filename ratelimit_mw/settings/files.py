"""Read settings files into plain data, with the values of environment variables. Knows no settings."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin

import msgspec

from ..errors import ConfigError, MissingExtraError, error_path, path_of
from ..rules.declaration import kinds_of, options_of
from ..rules.match import FeatureValues
from ..rules.places import steps_of, yaml_lines
from ..runtime.regularfile import Identity, identity_of, read_regular

_PLACE: Final = re.compile(r"line (\d+),? column")


Identities = dict[Path, Identity | None]
"""The identities of some files before they were read, None for a missing one."""


class Origin(NamedTuple):
    """The source of settings."""

    load: Callable[[Identities], Any]
    """Loads the ``Settings`` again, and adds the files that it reads. A file that is empty now is an error."""
    files: Identities
    """The files that were read."""
    table: Mapping[str, object]
    """The settings as they were read."""
    arguments: tuple[str, ...] = ()
    """The settings that arguments of a middleware have replaced."""


def read(path: Path, files: Identities, kind: str = "settings file") -> Any:
    """Read a settings file. Raise ``ConfigError`` with the path when it is missing, malformed or not permitted."""
    decode = _DECODERS.get(path.suffix.lower())
    if decode is None:
        hint = ""
        if kind == "settings file" and not path.suffix:
            hint = '. For limits of all requests, write limits="100/minute"'
        raise ConfigError(f"{path}: unknown file type {path.suffix!r}. Expected {', '.join(_DECODERS)}{hint}")
    content = _content(path, files, kind)
    try:
        data = decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        # PyYAML without libyaml quotes an indented line of the file, which may hold a secret.
        reason = "\n".join(line for line in str(error).splitlines() if not line.startswith("    "))
        place = _PLACE.search(reason)
        raise ConfigError(f"{path}{f':{place[1]}' if place else ''}: cannot parse the file: {reason}") from None
    return _own_table(data, path) if path.name == "pyproject.toml" else data


def _content(path: Path, files: Identities, kind: str) -> bytes:
    try:
        files.setdefault(path, identity_of(path))  # that of before: a change in the meantime makes a difference
        return read_regular(path)
    except FileNotFoundError:
        folder = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise ConfigError(f"{kind} {str(path)!r} not found{folder}") from None
    except OSError as error:
        raise ConfigError(f"{kind} {str(path)!r} cannot be read: {error.strerror}") from None


def _yaml(data: bytes) -> Any:
    try:
        decoded = msgspec.yaml.decode(data)
    except ImportError:
        raise MissingExtraError("a settings file in YAML", "yaml") from None
    yaml_lines(data)
    return decoded


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name, value in pairs:
        if name in table:
            raise ValueError(f"the key {name!r} occurs twice in one table")
        table[name] = value
    return table


_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    ".toml": lambda content: msgspec.toml.decode(content.decode("utf-8-sig")),  # an editor may write a mark
    ".json": partial(json.loads, object_pairs_hook=_unique),
    ".yaml": _yaml,
    ".yml": _yaml,
}


def _own_table(data: Any, path: Path) -> Any:
    tools = data.get("tool")
    if isinstance(tools, dict) and "ratelimit_mw" in tools:
        return tools["ratelimit_mw"]
    raise ConfigError(f"{path}: the file has no [tool.ratelimit_mw] table")


_REFERENCE: Final = re.compile(r"\$(\$)?\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\})?")
_HIDDEN: Final = "***"
_LONG: Final = 8
"""The length from which a value is looked for within other texts of a message."""
_TRUTHS: Final = {"true": True, "false": False}


def with_variables(value: Any, hint: Any = None) -> Any:
    """Return settings with the values of variables in their texts. ``$${`` is the text ``${``.

    Names of settings and of tables stay as they are.

    >>> with_variables({"store": "$${REDIS_URL}"})
    {'store': '${REDIS_URL}'}
    >>> with_variables("${NOT_SET:-20}", int), with_variables("${NOT_SET:-127.0.0.1, unix}", Sequence[str])
    (20, ['127.0.0.1', 'unix'])
    """
    if isinstance(value, str):
        text = _REFERENCE.sub(_variable, value) if "${" in value else value
        return _converted(text, hint) if names_in(value) else text
    if isinstance(value, Mapping):
        return {name: _at(path_of(str(name)), item, _hint_of(hint, name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [get_args(kind)[0] for kind in kinds_of(hint) if get_origin(kind) is Sequence]
        return type(value)([_at(f"[{i}]", item, next(iter(items), None)) for i, item in enumerate(value)])
    return value


def names_in(value: Any) -> list[str]:
    """Return the names of the variables in a text, or in all texts of a table or a list."""
    if isinstance(value, Mapping | list | tuple):
        items = value.values() if isinstance(value, Mapping) else value
        return [name for item in items for name in names_in(item)]
    if not isinstance(value, str) or "${" not in value:
        return []
    return [found[2] for found in _REFERENCE.finditer(value) if found[2] and not found[1]]


def with_names(message: str, data: Any, path: str) -> str:
    """Return the message of an error in the setting with a path, with the names of its variables.

    It does not show their values, which may be secrets of another option. It shows a default, as the settings do. Nor
    does it show a secret in the wrong place: in TOML, a setting below the table of a rule is of that table.
    """
    steps = steps_of(path)
    is_secret = "secret" in steps or not isinstance(data, Mapping)  # a file that is no table may hold anything
    for step in steps:
        try:
            data = data if isinstance(data, str) else data[step]
        except (LookupError, TypeError):  # a path may end within a part of the settings
            break
    for text in _secrets_in(data, is_secret):
        message = _without(text, message)
    used = []
    for name in dict.fromkeys(names_in(data)):
        hidden = _without(os.environ.get(name, ""), message)
        if (isinstance(data, str) or hidden != message) and name not in message:
            used.append(f"${{{name}}}")
        message = hidden
    return f"{message} (from {' and '.join(used)})" if used else message


def _secrets_in(value: Any, is_secret: bool) -> Iterator[str]:
    """Yield the secrets, and the URLs that may have a login."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _secrets_in(item, is_secret or name == "secret")
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets_in(item, is_secret)
    elif is_secret or (isinstance(value, str) and "://" in value and "@" in value):
        yield str(value)


def _without(value: str, message: str) -> str:
    """Return a message that does not show a value, nor an item of it."""
    for text in filter(None, (value, *map(str.strip, re.split("[,;|]", value)))):
        message = message.replace(repr(text), repr(_HIDDEN))
    if len(value) >= _LONG:  # in double quotes, it is an example of the message itself
        message = re.sub(f'(?<!"){re.escape(repr(value)[1:-1])}', _HIDDEN, message)
    return message


def _at(path: str, value: Any, hint: Any) -> Any:
    with error_path(path):
        return with_variables(value, hint)


def _hint_of(hint: Any, name: Any) -> Any:
    """Return the declared type of a value in a table; None where none is declared."""
    for kind in kinds_of(hint):
        if get_origin(kind) is Mapping:
            return get_args(kind)[1]
        if hasattr(kind, "__required_keys__"):
            options = options_of(kind)
            return options[name].hint if name in options else FeatureValues
    return None


def _converted(text: str, hint: Any) -> Any:
    """Return a text as a value of the declared type, if it can be one."""
    kinds = [get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in kinds_of(hint)]
    for kind in kinds:
        if kind is bool and text.lower() in _TRUTHS:
            return _TRUTHS[text.lower()]
        with suppress(ValueError):
            if kind is float or (kind is int and text == str(int(text))):
                return kind(text)
    if any(get_origin(kind) is Sequence for kind in kinds) and ("," in text or str not in kinds):
        return [item.strip() for item in text.split(",") if item.strip()]
    return text


def _variable(reference: re.Match[str]) -> str:
    """Return the value of a variable. No message shows the text around its name, which may be a secret."""
    escape, name, default = reference.groups()
    if escape:
        return reference[0][1:]
    if name is None:
        expected = '"${NAME}"'
        raise ConfigError(
            f'expected the name of an environment variable in {expected}. Write "$${{" for the text "${{"'
        )
    value = os.environ.get(name)
    if default is not None:
        return value or default
    if value is None:
        hint = f'Set it, or write "$${{{name}}}" for the text, or "${{{name}:-VALUE}}" for a default'
        raise ConfigError(f"the environment variable {name!r} is not set. {hint}")
    return value
