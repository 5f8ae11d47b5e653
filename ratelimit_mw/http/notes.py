"""Notes about limits that may not work as expected. They are logged once at the start, and ``check`` shows them."""

import itertools
import logging
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final
from weakref import WeakValueDictionary

from ..keys.parts import feature_of
from ..limiter.limiter import Limiter
from ..rules.compiled import CompiledRule
from ..rules.decorators import marks_made
from ..rules.marks import Mark, marks_of
from ..rules.overlap import overlap
from ..stores.memory.store import MemoryStore
from .features import IDENTIFY
from .layers import has_inner, is_inner, layers_of
from .limiter import HttpLimiter
from .rules import OF_USER

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
HIDDEN_WAIT: Final = (
    "{} does not expose Retry-After, so scripts of other origins cannot read the time to wait after a rejection. Add {}"
)
_CORS: Final = re.compile("cors", re.IGNORECASE)
_CORS_OF_STARLETTE: Final = "starlette.middleware.cors"
_EXPOSED: Final = "Access-Control-Expose-Headers"
_CREDENTIALS: Final = "Access-Control-Allow-Credentials"
# AuthMiddleware, basic_auth, JWTAuthentication; not AuthorStats, nor OAuth2Token, which rejects no passwords
_AUTHENTICATION: Final = re.compile(r"(?:(?<!O)A|(?<!o)a)uth(?!or(?!i[sz]))")
_OF_APPLICATIONS: Final = ("build_middleware_stack", "wsgi_app")
_MAX_SHOWN: Final = 5
applications_read: Final = WeakValueDictionary[int, Any]()
"""The applications of Starlette, FastAPI and Flask whose routes were read, by id."""
_log = logging.getLogger("ratelimit_mw")


def log_notes(limits: HttpLimiter, app: object) -> None:
    """Log each note about an application and its limits, once in this process."""
    rules = limits.limiter.rules
    if not rules.enabled:
        log_note(NOT_ENABLED)
    if not (rules.rules or rules.lists.entries or marks_made or limits.is_outer):
        log_note(NO_RULES)
    packages = set(map(_package_of, rules.marks))
    log_all(*notes_on_layers(app), *notes_on_stages(limits, app))
    log_all(*notes_on_workers(limits.limiter), *notes_on_marks(packages))


def log_all(*notes: str) -> None:
    for note in notes:
        log_note(note)


@lru_cache(256)
def log_note(note: str) -> None:
    """Log a note, once in this process."""
    _log.warning("%s", note)


def notes_on_layers(app: object) -> Iterator[str]:
    """Note a CORS middleware inside the limits."""
    for layer in layers_of(app):
        if _CORS.search(name := type(layer).__name__):
            yield f"{name} is inside RateLimitMiddleware: rejections have no CORS headers. Put {name} outside"


def notes_on_exposed_headers(outside: Iterable[object]) -> Iterator[str]:
    """Note a CORS middleware of Starlette around the limits that hides the time to wait from scripts."""
    for layer in outside:
        headers = getattr(layer, "simple_headers", None)
        is_known = any(base.__module__ == _CORS_OF_STARLETTE for base in type(layer).__mro__)
        if not is_known or not isinstance(headers, Mapping):
            continue
        if hides_wait(headers.get(_EXPOSED, "").split(","), _CREDENTIALS in headers):
            yield HIDDEN_WAIT.format(type(layer).__name__, 'expose_headers=["Retry-After", "RateLimit"]')


def hides_wait(exposed: Iterable[str], has_credentials: bool) -> bool:
    """Return whether these headers, which scripts of other origins may read, have no time to wait.

    In responses to requests with credentials, browsers read ``*`` as the name of a header.
    """
    names = {"retry-after"} if has_credentials else {"retry-after", "*"}
    return names.isdisjoint(name.strip().lower() for name in exposed)


def notes_on_authentication(limiter: Limiter, outside: Iterable[object]) -> Iterator[str]:
    """Note an authentication outside the limits. No rule by IP address counts the requests that it rejects."""
    for name, rule in authentication_in(limiter, (type(layer).__name__ for layer in outside)):
        yield (
            f"{name} is outside RateLimitMiddleware: the rule {rule!r} does not count the requests that {name}"
            " rejects, such as failed logins. Add RateLimitMiddleware outside it, too, with the same settings"
        )


def notes_on_users(limits: HttpLimiter, reason: str) -> Iterator[str]:
    """Note a rule or a list that needs the user, where nothing provides it for this ``reason``."""
    for effect in limits.in_force.without_user[:1]:
        if reason != NO_USER:  # a layer around the application or the server may provide it
            effect = effect.replace("never applies", "may never apply").replace("counts no", "may count no")
        yield f"{effect}: {reason}, or pass features={{'user': function}}"


def authentication_in(limiter: Limiter, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the names of middleware that authenticate, each with a rule that needs no user."""
    rules = [rule for rule in limiter.rules.everywhere if OF_USER.isdisjoint(rule.source.needs)]
    first = next((rule.name for rule in rules if not rule.source.matches.is_only_named), None)
    return ((name, first) for name in names if first and _AUTHENTICATION.search(name.rpartition(".")[2]))


def notes_on_stages(limits: HttpLimiter, app: object) -> Iterator[str]:
    """Note what two middlewares with the same rules do not limit."""
    if not has_inner(limits, app):
        return
    yield from notes_on_allow_list(limits)
    for layer in itertools.takewhile(lambda layer: not is_inner(limits, layer), layers_of(app)):
        mounts = getattr(layer, "mounts", None)
        for path, mounted in mounts.items() if isinstance(mounts, Mapping) else ():
            rules = [name for name in limits.in_force.left if _may_apply(limits.in_force.rules.by_name[name], path)]
            if rules and not has_inner(limits, mounted):
                yield (
                    f"the rule {rules[0]!r} does not limit {path}: the inner one of two RateLimitMiddleware decides the"
                    f" rule, and {type(layer).__name__} serves {path} before it. Wrap the application at {path} in"
                    " RateLimitMiddleware with the same settings"
                )


def _may_apply(rule: CompiledRule, mount: str) -> bool:
    """Return whether a rule may apply to requests for a mounted application whose routes are not known."""
    source = rule.source
    by_route = source.matches.views or any(name.startswith("path:") for name in source.needs)
    paths = source.matches.paths
    return not by_route and (not paths or any(overlap(path, f"{mount}/**") for path in paths))


def notes_on_allow_list(limits: HttpLimiter) -> Iterator[str]:
    """Note an allow list that does not apply in the outer one of two middlewares."""
    rules = [rule.name for rule in limits.in_force.rules.rules if rule.name not in limits.in_force.left]
    unknown = frozenset() if IDENTIFY in limits.own_features else OF_USER - limits.own_features
    for part in limits.in_force.rules.lists.names("allow") if rules else ():
        if feature_of(part) in unknown or not limits.in_force.reader.knows(part):
            yield (
                f"the allow list by {part} does not lift the rule {rules[0]!r}: the outer RateLimitMiddleware decides"
                f" this rule, and {part} is not known there. Allow by ip or path, or give the rule a key with {part}"
            )


def notes_on_workers(limiter: Limiter) -> Iterator[str]:
    """Note a store in memory in one of several worker processes."""
    if isinstance(limiter.store, MemoryStore) and (count := count_workers()) > 1:
        yield (
            f"memory:// counts in each of the {count} worker processes, so clients get up to {count} times each limit."
            ' Set a store that they share: "redis://..." or "lmdb:///..."'
        )


def count_workers() -> int:
    """Return the number of worker processes that ``WEB_CONCURRENCY`` or uWSGI names, or 1."""
    text = os.environ.get("WEB_CONCURRENCY", "")
    return int(text) if text.isdecimal() and len(text) < 6 else getattr(sys.modules.get("uwsgi"), "numproc", 1)


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
