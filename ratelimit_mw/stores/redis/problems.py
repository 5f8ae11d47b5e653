"""What the server says is wrong, and what goes wrong on the way, as the one error of this package: without secrets."""

from __future__ import annotations

from typing import Any

from hiredis import ReplyError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ...errors import StoreError

__all__ = ["Command", "is_demoted", "is_unknown_script", "late", "problem"]

Command = tuple[Any, ...]
"""A command to a server: bytes, texts and numbers."""


def is_unknown_script(error: ReplyError) -> bool:
    return str(error).startswith("NOSCRIPT")


def is_demoted(error: ReplyError) -> bool:
    """Whether the server is not the primary, or no longer."""
    return str(error).startswith("READONLY")


def late() -> StoreError:
    """No answer within the time budget."""
    return StoreError("Redis did not answer within its time budget")


def problem(error: Exception) -> StoreError:
    """Whatever was raised on the way to the server or back."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, TimeoutError | RedisTimeoutError):
        return late()
    return StoreError(f"Redis: {type(error).__name__}: {error}")
