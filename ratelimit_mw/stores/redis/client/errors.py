"""What the server says is wrong, and what goes wrong on the way, as the one error of this package: without secrets."""

from __future__ import annotations

from typing import Any, Final

from hiredis import ReplyError

from ....errors import StoreError

__all__ = ["Command", "discreet", "is_demoted", "is_split", "is_unknown_script", "late", "problem"]

Command = tuple[Any, ...]
"""A command to a server: bytes, texts and numbers."""


_HINTS: Final = {
    "MOVED": "this server is one of a cluster: its address begins with redis+cluster://",
    "READONLY": "this server is a replica: name the primary, or let redis+sentinel:// find it",
    "NOPERM": "docs/redis.md has the rights that are needed",
}


def is_unknown_script(error: ReplyError) -> bool:
    return str(error).startswith("NOSCRIPT")


def is_demoted(error: ReplyError) -> bool:
    """Whether the server is not the primary, or no longer."""
    return str(error).startswith("READONLY")


def is_split(error: Exception) -> bool:
    """Whether some keys of a call are here and others on another server, as its slot is just moving there."""
    return isinstance(error, ReplyError) and str(error).startswith("TRYAGAIN")


def discreet(error: ReplyError) -> ReplyError:
    """The error without what was sent: a server quotes a command that it does not know, also a password or a key."""
    return ReplyError(str(error).partition(", with args beginning with")[0])


def late() -> StoreError:
    """No answer within the time budget."""
    return StoreError("Redis did not answer within its time budget")


def problem(error: Exception) -> StoreError:
    """Whatever was raised on the way to the server or back."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, TimeoutError):
        return late()
    if isinstance(error, ReplyError):
        hint = _HINTS.get(str(error).partition(" ")[0])
        return StoreError(f"Redis: {error}" + (f" ({hint})" if hint else ""))
    return StoreError(f"Redis: {type(error).__name__}: {error}")
