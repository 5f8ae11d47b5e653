"""The clients that may see a dashboard: those that ``allow`` accepts, or by default those with the printed password."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any

from ..errors import ConfigError
from ..http.admission import Admission
from ..http.request import Request
from ..http.rules import DECIDED
from ..http.token import has_token, start_token
from ..limiter.limiter import Limiter

Allow = Callable[[Any], bool | Awaitable[bool]]
"""Your function of the framework's request. It may be async where the framework is."""

_log = logging.getLogger("ratelimit_mw")


def check_arguments(limiter: object, allow: object) -> None:
    """Raise ``ConfigError`` for arguments that a dashboard cannot have. Without ``allow``, log the password."""
    if limiter is not None and not isinstance(limiter, Limiter):
        raise ConfigError(f"expected a Limiter; got {limiter!r}", "limiter")
    if allow is not None and not callable(allow):
        raise ConfigError(f"expected a function of the request; got {allow!r}", "allow")
    if allow is None:
        _log_password()


@cache
def _log_password() -> None:
    _log.warning(
        "the dashboard has no allow. Until this process ends, it opens with any user name and this password: %s",
        start_token(),
    )


def ask(request: Request, allow: Allow | None) -> bool | Awaitable[bool]:
    """Return the answer of ``allow``, or its awaitable. Without a function, the request needs the password."""
    return has_token(request, start_token(), "bearer", "basic") if allow is None else allow(request.own)


def is_open(answer: object, server_data: Mapping[str, Any]) -> bool:
    """Return whether an answer opens the dashboard. A coroutine, or a response, must not.

    The counts that the dashboard shows leave out a request that opens it: an open page sends one every few seconds.

    Raises:
        ConfigError: The answer is neither true nor false.
    """
    if answer is not True and answer:
        raise ConfigError(f"expected True or False from the function; got {type(answer).__name__}", "allow")
    admissions: Mapping[object, Admission] = server_data.get(DECIDED, {}) if answer else {}
    for admission in admissions.values():
        admission.skip_event()
    return bool(answer)
