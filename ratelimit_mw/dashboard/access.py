"""The clients that may see a dashboard: those that ``allow`` names, else programs of this machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..errors import ConfigError
from ..http.admission import Admission
from ..http.local import is_local
from ..http.request import Request
from ..http.rules import DECIDED
from ..limiter.limiter import Limiter

Allow = Callable[[Any], bool | Awaitable[bool]]
"""Your function of the framework's request. It may be async where the framework is."""


def check_arguments(limiter: object, allow: object) -> None:
    """Raise ``ConfigError`` for arguments that a dashboard cannot have."""
    if limiter is not None and not isinstance(limiter, Limiter):
        raise ConfigError(f"expected a Limiter; got {limiter!r}", "limiter")
    if allow is not None and not callable(allow):
        raise ConfigError(f"expected a function of the request; got {allow!r}", "allow")


def is_open_to(request: Request, allow: Allow | None, own: Any = None) -> bool | Awaitable[bool]:
    """Return whether the client of a request may see the dashboard, or its awaitable.

    Args:
        request: The request.
        allow: Your function; None for a dashboard that only this machine may see.
        own: The request that your function receives. Default: the one that the functions of features receive.
    """
    return is_local(request) if allow is None else allow(request.own if own is None else own)


def leave_out(server_data: Mapping[str, Any]) -> None:
    """Keep the request out of the counts that the dashboard shows. An open page sends one every few seconds."""
    admissions: Mapping[object, Admission] = server_data.get(DECIDED, {})
    for admission in admissions.values():
        admission.skip_event()


def checked_answer(answer: object) -> bool:
    """Return what ``allow`` has returned. A coroutine, or a response, must not open the dashboard.

    Raises:
        ConfigError: It is neither true nor false.
    """
    if answer is not True and answer:
        raise ConfigError(f"expected True or False from the function; got {type(answer).__name__}", "allow")
    return bool(answer)
