"""What goes wrong, as the one error of this package: said without secrets."""

from __future__ import annotations

from redis.exceptions import TimeoutError as RedisTimeoutError

from ...errors import StoreError

__all__ = ["late", "problem"]


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
