"""Notes about limits that may not work as expected. They are logged once at the start, and ``check`` shows them."""

import logging
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Final

from ..limiter.limiter import Limiter
from ..rules.decorators import marks_made
from ..rules.marks import Mark, marks_of
from ..stores.memory.store import MemoryStore
from .layers import layers_of
from .limiter import OF_USER, HttpLimiter

_SERVERS: Final = re.compile(r"gunicorn|uvicorn|hypercorn|granian|fastapi")
_WORKERS: Final = re.compile(r"(?:^|\s)(?:--workers|-w)[\s=]*(\d+)")
_CORS: Final = re.compile("cors", re.IGNORECASE)
_AUTHENTICATION: Final = re.compile("auth", re.IGNORECASE)
_MAX_SHOWN: Final = 5
_log = logging.getLogger("ratelimit_mw")


def log_notes(limits: HttpLimiter, app: object) -> None:
    """Log each note about an application and its limits, once in this process."""
    packages = set(map(_package_of, limits.limiter.rules.marks))
    for note in (*notes_on_layers(app), *notes_on_workers(limits.limiter), *notes_on_marks(packages)):
        log_note(note)


@lru_cache(256)
def log_note(note: str) -> None:
    """Log a note, once in this process."""
    _log.warning("%s", note)


def notes_on_layers(app: object) -> Iterator[str]:
    """Note a CORS middleware inside of the limits."""
    for layer in layers_of(app):
        if _CORS.search(name := type(layer).__name__):
            yield (
                f"{name} is inside of RateLimitMiddleware: rejections have no CORS headers, and preflights count."
                f" Put {name} outside"
            )


def notes_on_authentication(limiter: Limiter, outside: Iterable[object]) -> Iterator[str]:
    """Note an authentication outside of the limits. No rule by IP address counts the requests that it rejects."""
    rules = [rule.name for rule in limiter.rules.everywhere if OF_USER.isdisjoint(rule.source.needs)]
    names = [type(layer).__name__ for layer in outside]
    for name in filter(_AUTHENTICATION.search, names if rules else ()):
        yield (
            f"{name} is outside of RateLimitMiddleware: the rule {rules[0]!r} does not count the requests that {name}"
            " rejects, such as failed logins. Add RateLimitMiddleware outside of it, too, with the same settings"
        )


def notes_on_workers(limiter: Limiter) -> Iterator[str]:
    """Note a store in memory in one of several worker processes."""
    if isinstance(limiter.store, MemoryStore) and (count := count_workers()) > 1:
        yield (
            f"memory:// counts in each of the {count} worker processes, so clients get up to {count} times each limit."
            ' Set a store that they share: "redis://..." or "lmdb:///..."'
        )


def count_workers() -> int:
    """Return the number of worker processes, as far as it is in the environment or the command."""
    command = " ".join(sys.argv[1:]) if _SERVERS.search(sys.argv[0]) else ""
    named = _WORKERS.search(f"{command} {os.environ.get('GUNICORN_CMD_ARGS', '')}")
    text = named[1] if named else os.environ.get("WEB_CONCURRENCY", "")
    return int(text) if text.isdecimal() and len(text) < 6 else getattr(sys.modules.get("uwsgi"), "numproc", 1)


def notes_on_marks(packages: Collection[str]) -> Iterator[str]:
    """Note the decorated views of these packages that no route leads to.

    Only names in modules are checked. Functions inside of functions may belong to another application.
    """
    names = sorted({mark.view for mark in marks_made if _package_of(mark) in packages and _is_unrouted(mark)})
    if names:
        more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
        yield (
            f"no route leads to {', '.join(names[:_MAX_SHOWN])}{more}, so @limit limits nothing there. Check the order"
            " of the decorators and the routers. If this is on purpose, write @limit(..., unrouted=True)"
        )


def _package_of(mark: Mark) -> str:
    return mark.view.partition(".")[0]


def _is_unrouted(mark: Mark) -> bool:
    module, _, name = mark.view.rpartition(".")
    view = getattr(sys.modules.get(module), name, None)
    return not mark.is_routed and not mark.rule.unrouted and mark in marks_of(view).every
