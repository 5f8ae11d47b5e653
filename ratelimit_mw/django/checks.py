"""System checks: mistakes in the limits of a project that Django reports before it serves a request."""

from __future__ import annotations

import os
from typing import Any, Final

import django.conf
from django.conf.urls.i18n import is_language_prefix_patterns_used
from django.core import checks
from django.utils.module_loading import import_string

from ..errors import RateLimitError
from ..settings.framework import SETTING
from . import conf
from .middleware import RateLimitMiddleware

_WORKERS: Final = "WEB_CONCURRENCY"
_MIDDLEWARE: Final = f"{RateLimitMiddleware.__module__}.{RateLimitMiddleware.__qualname__}"
_AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"
_LOCALE: Final = "django.middleware.locale.LocaleMiddleware"
_WARNINGS: Final = {
    "W001": (
        "Decorators limit views, but MIDDLEWARE does not list RateLimitMiddleware: these views raise an error.",
        'Add "ratelimit_mw.django.RateLimitMiddleware" to MIDDLEWARE, after AuthenticationMiddleware.',
    ),
    "W003": (
        "A rule counts by user, but RateLimitMiddleware runs before the user is known.",
        f"Move it after AuthenticationMiddleware, or set features.user in {SETTING} to a function.",
    ),
    "W004": (
        "URLs begin with a language, but RateLimitMiddleware runs before it is known, so it finds no routes.",
        "Move it after LocaleMiddleware.",
    ),
}


def check_project(**_: Any) -> list[Any]:
    """E001: a setting or a decorator cannot work. W001: decorators without the middleware.

    W003: the user, and W004: the language is not known yet at the place of the middleware.
    """
    try:
        project = conf.project_limits()
        has_marks = project.routes().has_marks
    except RateLimitError as error:
        return [checks.Error(str(error), id="ratelimit_mw.E001")]
    by_user = "user" in project.middleware_needs and not project.gives_user
    by_language, _ = is_language_prefix_patterns_used(django.conf.settings.ROOT_URLCONF)
    position, authentication, locale = map(_position_of, (_MIDDLEWARE, _AUTHENTICATION, _LOCALE))
    found = {
        "W001": has_marks and position is None,
        "W003": by_user and position is not None and (authentication is None or position < authentication),
        "W004": by_language and position is not None and locale is not None and position < locale,
    }
    return [
        checks.Warning(message, hint=hint, id=f"ratelimit_mw.{name}")
        for name, (message, hint) in _WARNINGS.items()
        if found[name]
    ]


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


def _position_of(name: str) -> int | None:
    """Return the position of a class or its subclass in ``MIDDLEWARE``, by name: some of Django needs its models."""
    # An entry that cannot be imported is reported by Django itself.
    for position, entry in enumerate(map(import_string, django.conf.settings.MIDDLEWARE)):
        if any(name == f"{base.__module__}.{base.__qualname__}" for base in getattr(entry, "__mro__", ())):
            return position
    return None
