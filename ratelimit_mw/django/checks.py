"""System checks: what Django says of the limits of a project before it serves anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import django.conf
from django.conf.urls.i18n import is_language_prefix_patterns_used
from django.core import checks
from django.utils.module_loading import import_string

from ..errors import RateLimitError
from . import conf
from .limits import ProjectLimits
from .middleware import RateLimitMiddleware

__all__ = ["check_deployment", "check_project"]

_WORKERS: Final = "WEB_CONCURRENCY"
_OURS: Final = f"{RateLimitMiddleware.__module__}.{RateLimitMiddleware.__qualname__}"


def check_project(**_: Any) -> list[Any]:
    """E001: the settings or a decorator cannot work. W001: decorators, and nobody to heed them.

    W003: the user, and W004: the language is not known yet where the middleware stands.
    """
    try:
        enforcer = conf.enforcer()
        marked = enforcer.routes().marked
    except RateLimitError as error:
        return [checks.Error(str(error), id="ratelimit_mw.E001")]
    return [*_missing(marked), *_without_user(enforcer), *_without_language()]


def check_deployment(**_: Any) -> list[Any]:
    """W002: every worker process counts by itself."""
    try:
        store = conf.enforcer().limiter.settings.store
    except RateLimitError:
        return []  # E001 says so
    if not store.startswith("memory:"):
        return []
    workers = os.environ.get(_WORKERS, "")
    told = f"{workers} workers, as {_WORKERS} asks for," if workers.isdigit() else "several workers"
    return [
        checks.Warning(
            f"{conf.SETTING} counts in the memory of each process: {told} admit that many times what the limits say.",
            hint='Name a store that they share, such as "redis://127.0.0.1:6379/0" or "lmdb:///var/lib/app/ratelimit";'
            " with one worker, silence this check.",
            id="ratelimit_mw.W002",
        )
    ]


def _missing(marked: bool) -> Iterator[Any]:
    if marked and _place_of(_OURS) is None:
        yield checks.Warning(
            "Views are limited by decorators, and no middleware decides their limits: they will reject to run.",
            hint='Add "ratelimit_mw.django.RateLimitMiddleware" to MIDDLEWARE, after AuthenticationMiddleware.',
            id="ratelimit_mw.W001",
        )


def _without_user(enforcer: ProjectLimits) -> Iterator[Any]:
    if "user" not in enforcer.needs_beforehand or enforcer.gives_user:
        return
    if _stands_before("django.contrib.auth.middleware.AuthenticationMiddleware", missing=True):
        yield checks.Warning(
            "A rule counts by user, and the user is not known where RateLimitMiddleware stands.",
            hint=f"Put it after AuthenticationMiddleware, or give {conf.SETTING} a function: features.user.",
            id="ratelimit_mw.W003",
        )


def _without_language() -> Iterator[Any]:
    translated, _ = is_language_prefix_patterns_used(django.conf.settings.ROOT_URLCONF)
    if translated and _stands_before("django.middleware.locale.LocaleMiddleware", missing=False):
        yield checks.Warning(
            "The URLs begin with a language, and it is not known where RateLimitMiddleware stands: it finds no routes.",
            hint="Put it after LocaleMiddleware.",
            id="ratelimit_mw.W004",
        )


def _stands_before(other: str, missing: bool) -> bool:
    """Whether the middleware stands before another one; what is ``missing`` where there is no other."""
    place, place_of_other = _place_of(_OURS), _place_of(other)
    if place is None:
        return False
    return missing if place_of_other is None else place < place_of_other


def _place_of(name: str) -> int | None:
    """Where it, or a class made of it, stands in ``MIDDLEWARE``. By name: not all of Django can be imported always."""
    # What stands there and cannot be imported is not ours to report, and cannot start.
    for place, found in enumerate(map(import_string, django.conf.settings.MIDDLEWARE)):
        if any(name == f"{base.__module__}.{base.__qualname__}" for base in getattr(found, "__mro__", ())):
            return place
    return None
