"""Replace ``${NAME}`` in the texts of settings by variables of the environment. Knows no settings.

A number that Python does not write as text is an error here, before a message tries to show it.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from ..errors import ConfigError, error_path

_REFERENCE: Final = re.compile(r"\$(\$)?\{(?:([A-Za-z_][A-Za-z0-9_]*)\})?")


def with_variables(value: Any) -> Any:
    """Return settings with the values of variables in their texts. ``$${`` is the text ``${``.

    Names of settings and of tables stay as they are.

    >>> with_variables({"store": "$${REDIS_URL}"})
    {'store': '${REDIS_URL}'}
    """
    if isinstance(value, str):
        return _REFERENCE.sub(_variable, value) if "${" in value else value
    if isinstance(value, Mapping):
        return {name: _at(f"['{name}']" if "." in str(name) else str(name), item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_at(f"[{i}]", item) for i, item in enumerate(value)])
    if isinstance(value, int):
        try:
            str(value)
        except ValueError:  # TOML and YAML have hexadecimal numbers of any length
            raise ConfigError("the number has too many digits") from None
    return value


def _at(path: str, value: Any) -> Any:
    with error_path(path if path.isprintable() else ""):
        return with_variables(value)


def _variable(reference: re.Match[str]) -> str:
    """Return the value of a variable. No message shows the text around its name, which may be a secret."""
    escape, name = reference.groups()
    if escape:
        return reference[0][1:]
    if name is None:
        raise ConfigError('expected the name of an environment variable in "${NAME}". Write "$${" for the text "${"')
    if name not in os.environ:
        hint = f'Set it, or write "$${{{name}}}" for the text'
        raise ConfigError(f"the environment variable {name!r} is not set. {hint}")
    return os.environ[name]
