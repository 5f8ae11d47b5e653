"""Warnings about limits that may not work as expected. They are logged once in a process, and ``check`` shows some."""

import logging
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from ..errors import url_of
from ..limiter.remote.fleet import stated_workers
from ..rules.decorators import marks_made
from ..stores.memory.store import MemoryStore
from .limits import HttpLimiter

NOT_ENABLED: Final = "the settings have enabled = false, so no request is limited"
NO_RULES: Final = "there are no rules, so no request is limited"
_log = logging.getLogger("ratelimit_mw")


@lru_cache(256)
def warn(text: str, section: str) -> None:
    """Log a warning, once in this process, with the URL of its section on the page of log messages."""
    _log.warning("%s. See %s", text.removesuffix("."), url_of(f"how-to/operate/log-messages#{section}"))


def warn_at_start(http_limiter: HttpLimiter) -> None:
    """Log what makes the limits of an application useless."""
    limiter, workers = http_limiter.limiter, stated_workers()
    rules = limiter.rules
    if not rules.enabled:
        warn(NOT_ENABLED, "disabled")
    if not (rules.rules or rules.lists.entries or marks_made or http_limiter.before_user):
        warn(NO_RULES, "no-rules")
    if workers > 1 and isinstance(limiter.store, MemoryStore):
        effect = f"counts in each of the {workers} worker processes, so clients get up to {workers} times each limit"
        warn(f'memory:// {effect}. Set a store that they share: "redis://..." or "lmdb:///..."', "memory-workers")


def warnings_of_user(http_limiter: HttpLimiter, reason: str) -> Iterator[str]:
    """Name a rule or a list that needs the user, where nothing may provide the user for this ``reason``."""
    for effect in http_limiter.in_force.without_user[:1]:
        yield f"{effect}: {reason}, or pass features={{'user': function}}"


def warn_of_user(http_limiter: HttpLimiter, reason: str) -> None:
    """Log that nothing may provide the user that a rule or a list needs."""
    for text in warnings_of_user(http_limiter, reason):
        warn(text, "no-user")
