"""Read settings files into plain data. Knows no settings."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from ..errors import ConfigError, MissingExtraError

_PLACE: Final = re.compile(r"line (\d+), column|\(byte (\d+)\)")  # of TOML and YAML, and of JSON


def read(path: Path, kind: str = "settings file") -> Any:
    """Read a settings file. Raise ``ConfigError`` with the path when it is missing, malformed or not permitted."""
    decode = _DECODERS.get(path.suffix.lower())
    if decode is None:
        raise ConfigError(f"{path}: unknown file type {path.suffix!r}. Expected {', '.join(_DECODERS)}")
    content = _content(path, kind)
    try:
        data = decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        reason = _without_quotes(str(error))
        raise ConfigError(f"{path}{_line(reason, content)}: cannot parse the file: {reason}") from None
    return _own_table(data, path) if path.name == "pyproject.toml" else data


def _content(path: Path, kind: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        folder = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise ConfigError(f"{kind} {str(path)!r} not found{folder}") from None
    except OSError as error:
        raise ConfigError(f"{kind} {str(path)!r} cannot be read: {error.strerror}") from None


def _line(reason: str, content: bytes) -> str:
    """Return ":2" for an error in line 2, "" when the parser gives no place."""
    if not (place := _PLACE.search(reason)):
        return ""
    line = int(place[1] or content.count(b"\n", 0, int(place[2])) + 1)
    return f":{line}"


def limits_file(path: Path) -> Any:
    """Read a file with limits by client."""
    limits = read(path, "file")
    if not isinstance(limits, dict):
        raise ConfigError(f"{path}: expected a table of limits by client; got {limits!r}")
    return limits


def secret_file(path: Path) -> str:
    """Read a file that holds only a secret."""
    try:
        return _content(path, "file").decode().strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected text in UTF-8") from None


def _yaml(data: bytes) -> Any:
    try:
        return msgspec.yaml.decode(data)
    except ImportError:
        raise MissingExtraError("a settings file in YAML", "yaml") from None


_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    ".toml": msgspec.toml.decode,
    ".json": msgspec.json.decode,
    ".yaml": _yaml,
    ".yml": _yaml,
}


def _without_quotes(message: str) -> str:
    """Remove the indented line that PyYAML without libyaml quotes from the file, because it may hold a secret."""
    return "\n".join(line for line in message.splitlines() if not line.startswith("    "))


def _own_table(data: Any, path: Path) -> Any:
    tools = data.get("tool")
    if not isinstance(tools, dict) or "ratelimit_mw" not in tools:
        raise ConfigError(f"{path}: the file has no [tool.ratelimit_mw] table")
    return tools["ratelimit_mw"]
