"""Turn the errors of redis-py, of the server and of the connection into ``StoreError``. No secret is in a message."""

from typing import Any, Final

from redis import exceptions

from ...errors import ConfigError, RateLimitError, StoreError
from ..wire import NotConnectedError

Command = tuple[Any, ...]
"""The name and the arguments of a command: bytes, texts and whole numbers."""

# redis-py replaces the code of some error replies by a class. Its versions differ in which ones.
_CODES: Final = {
    "AskError": "ASK",
    "BusyLoadingError": "LOADING",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "NoScriptError": "NOSCRIPT",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}
_HINTS: Final = {
    "MOVED": "this server belongs to a cluster. Write redis+cluster://",
    "READONLY": "this server is a replica. Without a cluster, name the primary or use redis+sentinel://",
    "NOPERM": "docs/reference/stores/redis.md lists the permissions that the user needs",
}
_UNWELL: Final = {"CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY"}


def error_code(error: Exception) -> str:
    """Return the first word of an error reply, for example ``NOSCRIPT``."""
    return _CODES.get(type(error).__name__) or str(error).partition(" ")[0]


def is_unwell(reply: object) -> bool:
    """Return whether a reply is of a server that may have lost its name or its slots to another one by now.

    An open connection stays with the server that it has reached, so it should be closed.
    """
    return isinstance(reply, exceptions.ResponseError) and error_code(reply) in _UNWELL


class NotRunError(StoreError):
    """No server has run the operation."""


class MovingSlotError(NotRunError):
    """The keys of an operation are on two servers, because their slot is moving."""


_KINDS: Final = {
    "TRYAGAIN": MovingSlotError,
    **dict.fromkeys(("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY"), NotRunError),
}
"""The replies of a server that has run nothing."""


def timed_out(kind: type[StoreError] = StoreError) -> StoreError:
    return kind("Redis did not answer within its time budget")


def as_store_error(error: Exception) -> RateLimitError:
    """Return the error to raise for any exception of a call to the server."""
    if isinstance(error, (StoreError, ConfigError)):
        return error
    if isinstance(error, (TimeoutError, exceptions.TimeoutError)):
        return timed_out(NotRunError if isinstance(error, NotConnectedError) else StoreError)
    code = error_code(error)
    if isinstance(error, exceptions.ResponseError) or type(error).__name__ in _CODES:
        # The server repeats arguments, which may be a password or a key. Logs also show the cause of an error.
        text = str(error).partition(", with args beginning with")[0]
        error.args = (text,)
        text = text if type(error).__name__ not in _CODES or text.startswith(code) else f"{code} {text}"
        return _KINDS.get(code, StoreError)(f"Redis: {text}" + (f" ({_HINTS[code]})" if code in _HINTS else ""))
    if type(error).__name__ == "MasterNotFoundError":  # redis-py 6.3 to 7 adds its connections, with their passwords
        error.args = (str(error).partition(" : ")[0],)
    text = str(error).partition(". Connect call failed")[0].rstrip(".")  # asyncio repeats the address
    return StoreError(f"Redis: {type(error).__name__}: {text}")
