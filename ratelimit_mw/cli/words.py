"""The words of a command: features as ``NAME=VALUE``, durations, and commands to copy."""

import shlex
from collections.abc import Callable, Iterable
from typing import Any

import click

from ..errors import ConfigError
from ..http.request import group_values, only_value
from ..keys.email import normalized_email
from ..keys.features import INVALID, is_email
from ..keys.parts import checked_part, part_of
from ..quota import parse_duration
from .output import parsed
from .source import Source


def read_features(texts: Iterable[str]) -> dict[str, Any]:
    """Return the features of texts such as ``user=alice``.

    A feature that occurs twice with different values is invalid, as in a request.

    Raises:
        click.BadParameter: A text is no NAME=VALUE, or names no feature.
    """
    given: list[tuple[str, str]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"expected NAME=VALUE; got {text!r}")
        try:
            name = checked_part(name, in_key=False)
        except ConfigError as error:
            raise click.BadParameter(str(error)) from None
        if is_email(name) and (value := normalized_email(value)) is INVALID:
            raise click.BadParameter("email has more than 320 characters")
        given.append((name, value))
    features: dict[str, Any] = {}
    for name, values in sorted(group_values(given).items()):
        part, found = part_of(name), only_value(values)
        if not part.attribute:
            features[part.feature] = found
        elif isinstance(inside := features.setdefault(part.feature, {}), dict):
            inside[part.attribute] = found
        else:
            raise click.BadParameter(f"set either {part.feature} or {name}")
    return features


def checked_duration(text: str) -> str:
    """Return the text of a duration; ``ConfigError`` for another text, and for 0."""
    if not parse_duration(text):
        raise ConfigError(f"expected more than 0; got {text!r}")
    return text


read_words, read_duration = parsed(read_features), parsed(checked_duration)
features_argument: Callable[..., Any] = click.argument(
    "features", metavar="[NAME=VALUE]...", nargs=-1, callback=read_words
)


def command_line(source: Source, command: str, *words: str) -> str:
    """Return a command to copy, for the same file or application as the current one."""
    program = click.get_current_context().find_root().info_name or "ratelimit-mw"
    return " ".join([program, command, *map(_shell_word, (*source.arguments, *words))])


def _shell_word(text: str) -> str:
    """Return a text as a word of a shell. One with control characters needs bash or zsh."""
    if text.isprintable():
        return shlex.quote(text)
    return f"$'{''.join(map(_escaped, text))}'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    code = ord(character)
    return character if character.isprintable() else f"\\x{code:02x}" if code < 128 else f"\\U{code:08x}"
