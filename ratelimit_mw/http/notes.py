"""Notes about limits that may not work as expected. They are logged once at the start, and ``check`` shows them."""

import logging
import os
import sys
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any, Final
from weakref import WeakValueDictionary

from ..limiter.limiter import Limiter
from ..rules.decorators import marks_made
from ..rules.marks import Mark, marks_of
from ..stores.memory.store import MemoryStore
from .limits import HttpLimiter

NOT_ENABLED: Final = "the settings have enabled = false, so no request is limited"
NO_RULES: Final = "there are no rules, so no request is limited"
NO_USER: Final = (
    "no authentication is outside RateLimitMiddleware, so the user is not known."
    " Add AuthenticationMiddleware outside it"
)
NO_USER_SEEN: Final = (
    "the application has no authentication outside RateLimitMiddleware."
    " If no layer around the application sets the user, add AuthenticationMiddleware"
)
"""In logs: a layer around the application is not visible at the start."""
NO_REMOTE_USER: Final = (
    "under WSGI the user is REMOTE_USER, which most servers do not set."
    " Set it in middleware outside RateLimitMiddleware"
)
NO_LOGIN: Final = (
    "the application has no LoginManager of Flask-Login, and most servers set no REMOTE_USER. Add one before the first"
    " request"
)
_OF_APPLICATIONS: Final = ("build_middleware_stack", "wsgi_app")
_MAX_SHOWN: Final = 5
applications_read: Final = WeakValueDictionary[int, Any]()
"""The applications of Starlette, FastAPI and Flask whose routes were read, by id."""
_log = logging.getLogger("ratelimit_mw")


def log_notes(limits: HttpLimiter) -> None:
    """Log each note about the limits of an application, once in this process."""
    rules = limits.limiter.rules
    if not rules.enabled:
        log_note(NOT_ENABLED)
    if not (rules.rules or rules.lists.entries or marks_made or limits.before_user):
        log_note(NO_RULES)
    packages = set(map(_package_of, rules.marks))
    log_all(*notes_on_workers(limits.limiter), *notes_on_marks(packages))


def log_all(*notes: str) -> None:
    for note in notes:
        log_note(note)


@lru_cache(256)
def log_note(note: str) -> None:
    """Log a note, once in this process."""
    _log.warning("%s", note)


def notes_on_users(limits: HttpLimiter, reason: str) -> Iterator[str]:
    """Note a rule or a list that needs the user, where nothing provides it for this ``reason``."""
    for effect in limits.in_force.without_user[:1]:
        if reason != NO_USER:  # a layer around the application or the server may provide it
            effect = effect.replace("never applies", "may never apply").replace("counts no", "may count no")
        yield f"{effect}: {reason}, or pass features={{'user': function}}"


def notes_on_workers(limiter: Limiter) -> Iterator[str]:
    """Note a store in memory in one of several worker processes."""
    if isinstance(limiter.store, MemoryStore) and (count := count_workers()) > 1:
        yield (
            f"memory:// counts in each of the {count} worker processes, so clients get up to {count} times each limit."
            ' Set a store that they share: "redis://..." or "lmdb:///..."'
        )


def count_workers() -> int:
    """Return the number of worker processes that ``WEB_CONCURRENCY`` names, or 1."""
    text = os.environ.get("WEB_CONCURRENCY", "")
    return int(text) if text.isdecimal() and len(text) < 6 else 1


def notes_on_marks(packages: Collection[str]) -> Iterator[str]:
    """Note the decorated views of these packages that no route leads to.

    Only names in modules are checked. Functions inside functions may belong to another application.
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
    if mark.is_routed or mark.rule.unrouted:
        return False
    name, _, attribute = mark.view.rpartition(".")
    module = sys.modules.get(name)
    return mark in marks_of(getattr(module, attribute, None)).every and not _has_more_applications(module)


def _has_more_applications(module: object) -> bool:
    """Return whether a module has an application that may have the routes, and that has not started."""
    values = list(vars(module).values())
    apps = (value for value in values if any(hasattr(type(value), name) for name in _OF_APPLICATIONS))
    return any(applications_read.get(id(app)) is not app for app in apps)
