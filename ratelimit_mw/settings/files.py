"""Read settings files into plain data, and record their state, so that they can be read again. Knows no settings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ..errors import ConfigError, MissingExtraError
from ..rules.places import yaml_lines
from ..stores.regular import read_regular

_PLACE: Final = re.compile(r"line (\d+),? column")


class Identity(NamedTuple):
    """The numbers that differ between a file and a later version of it."""

    device: int
    inode: int
    modified_ns: int
    changed_ns: int
    size: int


class FileState(NamedTuple):
    """A file as it was read. The identity is None for a missing file, the digest for one that could not be read."""

    identity: Identity | None
    digest: bytes | None


class Origin(NamedTuple):
    """The source of settings. Settings with an equal ``key`` have the same source."""

    key: Hashable
    load: Callable[[], Any]
    """Loads the ``Settings`` again. A file that is empty now is an error."""
    files: Mapping[Path, FileState]
    """The files that were read."""
    table: Mapping[str, object]
    """The settings as they were read."""
    arguments: tuple[str, ...] = ()
    """The settings that arguments of a middleware have replaced."""


_reading: ContextVar[dict[Path, FileState] | None] = ContextVar("ratelimit_mw.reading", default=None)


@contextmanager
def recording() -> Iterator[dict[Path, FileState]]:
    """Collect the files that are read within the block, each as it was first read. Outer blocks collect them, too."""
    outer, files = _reading.get(), dict[Path, FileState]()
    token = _reading.set(files)
    try:
        yield files
    finally:
        _reading.reset(token)
        if outer is not None:
            outer.update({path: state for path, state in files.items() if path not in outer})


def read_bytes(path: Path) -> bytes:
    """Read a file, and record it with its identity of before: a change in the meantime then makes a difference."""
    files = _reading.get()
    files = {} if files is None else files
    known = files.setdefault(path, FileState(identity_of(path), None))
    content = read_regular(path)
    files[path] = known._replace(digest=known.digest or blake2b(content).digest())
    return content


def identity_of(path: Path) -> Identity | None:
    """Return the identity of a file, or of the file that a symbolic link leads to; None for a missing file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return Identity(found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)


def read(path: Path, kind: str = "settings file") -> Any:
    """Read a settings file. Raise ``ConfigError`` with the path when it is missing, malformed or not permitted."""
    decode = _DECODERS.get(path.suffix.lower())
    if decode is None:
        hint = "" if path.suffix else '. For limits of all requests, write limits="100/minute"'
        raise ConfigError(f"{path}: unknown file type {path.suffix!r}. Expected {', '.join(_DECODERS)}{hint}")
    content = _content(path, kind)
    try:
        data = decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        reason = _without_quotes(str(error))
        place = _PLACE.search(reason)
        raise ConfigError(f"{path}{f':{place[1]}' if place else ''}: cannot parse the file: {reason}") from None
    return _own_table(data, path) if path.name == "pyproject.toml" else data


def _content(path: Path, kind: str) -> bytes:
    try:
        return read_bytes(path)
    except FileNotFoundError:
        folder = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise ConfigError(f"{kind} {str(path)!r} not found{folder}") from None
    except (OSError, ValueError) as error:  # no file system has a name with a null byte or half a character
        reason = error.strerror if isinstance(error, OSError) else "the name is invalid"
        raise ConfigError(f"{kind} {str(path)!r} cannot be read: {reason}") from None


def secret_file(path: Path) -> str:
    """Read a file that holds only a secret."""
    try:
        return _content(path, "file").decode().strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected text in UTF-8") from None


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


def _without_quotes(message: str) -> str:
    """Remove the indented line that PyYAML without libyaml quotes from the file, because it may hold a secret."""
    return "\n".join(line for line in message.splitlines() if not line.startswith("    "))


def _own_table(data: Any, path: Path) -> Any:
    tools = data.get("tool")
    if isinstance(tools, dict) and "ratelimit_mw" in tools:
        return tools["ratelimit_mw"]
    raise ConfigError(f"{path}: the file has no [tool.ratelimit_mw] table")
