"""System checks: mistakes in the limits of a project that Django reports before it serves a request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import django.conf
from django.conf.urls.i18n import is_language_prefix_patterns_used
from django.core import checks
from django.utils.module_loading import import_string

from ..errors import RateLimitError
from ..settings.framework import SETTING
from . import conf
from .limits import ProjectLimits
from .middleware import RateLimitMiddleware

_WORKERS: Final = "WEB_CONCURRENCY"
_MIDDLEWARE: Final = f"{RateLimitMiddleware.__module__}.{RateLimitMiddleware.__qualname__}"


def check_project(**_: Any) -> list[Any]:
    """E001: a setting or a decorator cannot work. W001: decorators without the middleware.

    W003: the user, and W004: the language is not known yet at the place of the middleware.
    """
    try:
        project = conf.project_limits()
        marked = project.routes().has_marks
    except RateLimitError as error:
        return [checks.Error(str(error), id="ratelimit_mw.E001")]
    return [*_missing_middleware(marked), *_missing_user(project), *_missing_language()]


def check_deployment(**_: Any) -> list[Any]:
    """W002: each worker process counts for itself."""
    try:
        store = conf.project_limits().limits.limiter.settings.store
    except RateLimitError:
        return []  # reported as E001
    if not store.startswith("memory:"):
        return []
    count = os.environ.get(_WORKERS, "")
    workers = f"{count} workers ({_WORKERS})" if count.isdigit() else "several workers"
    return [
        checks.Warning(
            f"{SETTING} counts in the memory of each process: {workers} allow that many times each limit.",
            hint='Set a store that the workers share, such as "redis://127.0.0.1:6379/0" or'
            ' "lmdb:///var/lib/app/ratelimit". With one worker, silence this check.',
            id="ratelimit_mw.W002",
        )
    ]


def _missing_middleware(marked: bool) -> Iterator[Any]:
    if marked and _position_of(_MIDDLEWARE) is None:
        yield checks.Warning(
            "Decorators limit views, but MIDDLEWARE does not list RateLimitMiddleware: these views raise an error.",
            hint='Add "ratelimit_mw.django.RateLimitMiddleware" to MIDDLEWARE, after AuthenticationMiddleware.',
            id="ratelimit_mw.W001",
        )


def _missing_user(project: ProjectLimits) -> Iterator[Any]:
    if "user" not in project.middleware_needs or project.gives_user:
        return
    if _is_before("django.contrib.auth.middleware.AuthenticationMiddleware", default=True):
        yield checks.Warning(
            "A rule counts by user, but RateLimitMiddleware runs before the user is known.",
            hint=f"Move it after AuthenticationMiddleware, or set features.user in {SETTING} to a function.",
            id="ratelimit_mw.W003",
        )


def _missing_language() -> Iterator[Any]:
    translated, _ = is_language_prefix_patterns_used(django.conf.settings.ROOT_URLCONF)
    if translated and _is_before("django.middleware.locale.LocaleMiddleware", default=False):
        yield checks.Warning(
            "URLs begin with a language, but RateLimitMiddleware runs before it is known, so it finds no routes.",
            hint="Move it after LocaleMiddleware.",
            id="ratelimit_mw.W004",
        )


def _is_before(other: str, default: bool) -> bool:
    """Return whether RateLimitMiddleware is listed before another one; ``default`` where that is not listed."""
    own_position, position = _position_of(_MIDDLEWARE), _position_of(other)
    if own_position is None:
        return False
    return default if position is None else own_position < position


def _position_of(name: str) -> int | None:
    """Return the position of a class or its subclass in ``MIDDLEWARE``, by name: some of Django needs its models."""
    # An entry that cannot be imported is reported by Django itself.
    for position, entry in enumerate(map(import_string, django.conf.settings.MIDDLEWARE)):
        if any(name == f"{base.__module__}.{base.__qualname__}" for base in getattr(entry, "__mro__", ())):
            return position
    return None
