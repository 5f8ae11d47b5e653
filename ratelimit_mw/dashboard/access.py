"""``Mount``: which limiter a dashboard shows, which clients may see it, and whether they may change something.

They are those that ``allow`` accepts, or by default those with the printed password.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from ..errors import ConfigError
from ..http.admission import admissions_of
from ..http.request import Request
from ..http.token import has_token, start_token
from ..limiter.limiter import Limiter
from .page import templates

Allow = Callable[[Any], bool | Awaitable[bool]]
"""Your function of the framework's request. It may be async where the framework is."""

CHANGE: Final = "change"
"""The path of forms below the mount."""

_log = logging.getLogger("ratelimit_mw")


class Mount(NamedTuple):
    """The arguments of ``dashboard``, which are the same for every framework. Without a limiter, the framework's."""

    limiter: Limiter | None
    allow: Allow | None
    writes: bool

    def check(self) -> Mount:
        """Return it. Without ``allow``, log the password.

        Raises:
            ConfigError: An argument is invalid.
            MissingExtraError: The library for the templates is not installed.
        """
        if self.limiter is not None and not isinstance(self.limiter, Limiter):
            raise ConfigError(f"expected a Limiter; got {self.limiter!r}", "limiter")
        if self.allow is not None and not callable(self.allow):
            raise ConfigError(f"expected a function of the request; got {self.allow!r}", "allow")
        if not isinstance(self.writes, bool):
            raise ConfigError(f"expected True or False; got {self.writes!r}", "writes")
        templates()
        if self.allow is None:
            _log_password()
        return self

    def ask(self, request: Request) -> bool | Awaitable[bool]:
        """Return the answer of ``allow``, or its awaitable. Without a function, the request needs the password."""
        return (
            has_token(request, start_token(), "bearer", "basic") if self.allow is None else self.allow(request.passed)
        )


@cache
def _log_password() -> None:
    _log.warning(
        "the dashboard has no allow. Until this process ends, it opens with any user name and this password: %s",
        start_token(),
    )


def is_open(answer: object, server_data: Mapping[str, Any]) -> bool:
    """Return whether an answer opens the dashboard. A coroutine, or a response, must not.

    The counts that the dashboard shows leave out a request that opens it: an open page sends one every few seconds.

    Raises:
        ConfigError: The answer is neither true nor false.
    """
    if answer is not True and answer:
        raise ConfigError(f"expected True or False from the function; got {type(answer).__name__}", "allow")
    for admission in admissions_of(server_data) if answer else ():
        admission.skip_event()
    return bool(answer)
