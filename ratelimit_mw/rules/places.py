"""Where options are written: the ``Location`` of a rule, and the line of a setting in a settings file."""

import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..errors import ConfigError, join_path
from ..runtime.regularfile import read_regular

Steps = tuple[str | int, ...]
DEFAULTS: Final = "defaults"
"""The path of the options that all rules have."""

_STEP = re.compile(r"\[(\d+)\]|\['([^']*)'\]|([^.\[\]]+)")
_STRING_OR_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL
)
_HEADER = re.compile(r"\s*(\[{1,2})\s*([A-Za-z][\w.\- ]*)\]")  # no list in a list, whose texts are blanked


class Location(NamedTuple):
    """Where a rule, or an option of it, is written: in a table of a settings file, or else only in code.

    >>> str(Location(label="rule 'login'").error("the cost 5 is above the limit 3/minute", "cost"))
    "rule 'login': cost: the cost 5 is above the limit 3/minute"
    """

    file: str = ""
    """The settings file; "" for code, and for settings in a dictionary."""
    path: str = ""
    """The path of the table in the settings, such as "rules[1]"."""
    label: str = ""
    """The rule in messages."""
    hint: str = ""
    """The end of messages."""

    def error(self, message: str, path: str = "") -> ConfigError:
        """Return an error about what is written here. ``path`` begins with the name of an option."""
        error = ConfigError(f"{message}{self.hint}", path, self.label)
        # The place in a file is the beginning of the message, so that no path of a caller replaces it.
        if not self.file:
            return error
        placed = ConfigError(f"{place_of(self.file, join_path(self.path, path))}: {error}")
        for note in getattr(error, "__notes__", ()):
            placed.add_note(note)
        return placed


def place_of(source: str, path: str) -> str:
    """Return the "FILE:LINE" of a path in a settings file, or the file alone when it cannot be read."""
    try:
        return places_in(source)(path)
    except OSError:
        return source


def steps_of(path: str) -> Steps:
    """Split a path: "rules[1].limits[0]" is ("rules", 1, "limits", 0)."""
    return tuple(int(index) if index else key or name for index, key, name in _STEP.findall(path))


def places_in(source: str) -> Callable[[str], str]:
    """Read a settings file, and return the function that finds the "FILE:LINE" of a path such as "rules[1].limits".

    Without a line it returns the file alone.
    """
    file = Path(source)
    prefix = ("tool", "ratelimit_mw") if file.name == "pyproject.toml" else ()
    text = read_regular(file).decode("utf-8-sig", errors="replace")
    lines = _toml_lines(text) if file.suffix.lower() == ".toml" else yaml_lines(text)

    def find(path: str) -> str:
        steps = (*prefix, *steps_of(path))
        known = (lines[steps[:length]] for length in range(len(steps), 0, -1) if steps[:length] in lines)
        line = next(known, None)
        return f"{source}:{line}" if line else source

    return find


@lru_cache(1)  # each rule of a file asks for its lines
def _toml_lines(text: str) -> dict[Steps, int]:
    """Return the line of every table and key. Strings and comments are blanked. Other lines name no setting."""
    plain = _STRING_OR_COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    lines: dict[Steps, int] = {}
    table: Steps = ()
    sizes: Counter[Steps] = Counter()
    for number, line in enumerate(plain.split("\n"), 1):
        if header := _HEADER.match(line):
            table = _split_key(header[2])
            if header[1] == "[[":
                lines.setdefault(table, number)
                sizes[table] += 1
            # A table below an array of tables is in its last item, as in [rules.match].
            table = next(
                ((*table[:n], sizes[table[:n]] - 1, *table[n:]) for n in range(len(table), 0, -1) if sizes[table[:n]]),
                table,
            )
            lines.setdefault(table, number)
            continue
        lines.setdefault((*table, *_split_key(line.partition("=")[0])), number)
    return lines


def _split_key(key: str) -> Steps:
    return tuple(part.strip() for part in key.split("."))


@lru_cache(1)
def yaml_lines(text: str | bytes) -> dict[Steps, int]:
    """Return the line of every key and item in YAML, of which JSON is a part. ``ConfigError`` for a repeated key."""
    try:
        import yaml
    except ImportError:
        return {}
    lines: dict[Steps, int] = {}

    def walk(node: Any, steps: Steps) -> None:
        lines.setdefault(steps, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                path = (*steps, str(key.value))
                if path in lines:
                    place = f"line {key.start_mark.line + 1}, column {key.start_mark.column + 1}"
                    raise ConfigError(f"the key {key.value!r} occurs twice in one table: {place}")
                lines[path] = key.start_mark.line + 1
                walk(value, path)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                walk(item, (*steps, index))

    try:
        walk(yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), ())
    except (yaml.YAMLError, AttributeError):  # not YAML after all, or empty
        return {}
    return lines
