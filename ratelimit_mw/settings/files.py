"""Read settings files into plain data. Knows no settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from ..errors import ConfigError, MissingExtraError


def read(path: Path) -> Any:
    """Read a settings file. ``ConfigError`` for wrong syntax, ``OSError`` for a file that cannot be opened."""
    decode = _DECODERS.get(path.suffix.lower())
    if decode is None:
        raise ConfigError(f"unknown file type {path.suffix!r}. Expected {', '.join(_DECODERS)}")
    try:
        data = decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot parse the file: {_without_quotes(str(error))}") from None
    return _own_table(data) if path.name == "pyproject.toml" else data


def limits_file(path: Path) -> Any:
    """Read a file with limits by client."""
    try:
        limits = read(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(limits, dict):
        raise ConfigError(f"{path}: expected a table of limits by client; got {limits!r}")
    return limits


def secret_file(path: Path) -> str:
    """Read a file that holds only a secret."""
    try:
        return path.read_bytes().decode().strip()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
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


def _own_table(data: Any) -> Any:
    tools = data.get("tool")
    if not isinstance(tools, dict) or "ratelimit_mw" not in tools:
        raise ConfigError("the file has no [tool.ratelimit_mw] table")
    return tools["ratelimit_mw"]
