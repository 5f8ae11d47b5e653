"""Replace ``${NAME}`` and ``${NAME:-default}`` in settings by variables of the environment.

A text with a variable becomes what its option takes: a number, ``true`` or ``false``, or a list of texts. It is checked
like any other value. A number that Python does not write as text is an error here, before a message tries to show it.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from ..errors import ConfigError, error_path
from ..rules.declaration import kinds_of, options_of
from ..rules.match import FeatureValues
from ..rules.places import steps_of

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

    Args:
        value: The settings, or a part of them.
        hint: The declared type of the value; None for text.
    """
    if isinstance(value, str):
        return _converted(_REFERENCE.sub(_variable, value), hint) if names_in(value) else _unescaped(value)
    if isinstance(value, Mapping):
        return {
            name: _at(f"['{name}']" if "." in str(name) else str(name), item, _hint_of(hint, name))
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        items = [get_args(kind)[0] for kind in kinds_of(hint) if get_origin(kind) is Sequence]
        return type(value)([_at(f"[{i}]", item, next(iter(items), None)) for i, item in enumerate(value)])
    if isinstance(value, int):
        try:
            str(value)
        except ValueError:  # TOML and YAML have hexadecimal numbers of any length
            raise ConfigError("the number has too many digits") from None
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

    It does not show their values, which may be secrets of another option. It shows a default, as the settings do.
    """
    for step in steps_of(path):
        try:
            data = data if isinstance(data, str) else data[step]
        except (LookupError, TypeError):  # a path may end within a part of the settings
            break
    used = []
    for name in dict.fromkeys(names_in(data)):
        hidden = _without(os.environ.get(name, ""), message)
        if (isinstance(data, str) or hidden != message) and name not in message:
            used.append(f"${{{name}}}")
        message = hidden
    return f"{message} (from {' and '.join(used)})" if used else message


def _without(value: str, message: str) -> str:
    """Return a message that does not show a value, nor an item of it."""
    for text in filter(None, (value, *map(str.strip, re.split("[,;|]", value)))):
        message = message.replace(repr(text), repr(_HIDDEN))
    if len(value) >= _LONG:  # in double quotes, it is an example of the message itself
        message = re.sub(f'(?<!"){re.escape(repr(value)[1:-1])}', _HIDDEN, message)
    return message


def _at(path: str, value: Any, hint: Any) -> Any:
    with error_path(path if path.isprintable() else ""):
        return with_variables(value, hint)


def _unescaped(text: str) -> str:
    return _REFERENCE.sub(_variable, text) if "${" in text else text


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
        if get_origin(kind) is Literal and text in map(str, get_args(kind)):
            return next(choice for choice in get_args(kind) if str(choice) == text)
        if kind is bool and text.lower() in _TRUTHS:
            return _TRUTHS[text.lower()]
        with suppress(ValueError):
            if (kind is int and text == str(int(text))) or (kind is float and text.replace(".", "", 1).isdecimal()):
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
