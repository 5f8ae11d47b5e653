"""Reads ``settings.RATELIMIT_MW`` and builds the limits of the project.

The setting is the path of a file, a dictionary of settings, ``Settings`` or a ``Limiter``. A dictionary may also have
``features`` and ``rejection``, your own functions or their dotted paths. It may then have ``settings`` or ``limiter``
in place of the settings themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from os import PathLike
from typing import Any

import django.conf
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.utils.module_loading import import_string

from ..errors import ConfigError, placed
from ..http.limiter import HttpLimiter
from ..limiter.limiter import Limiter
from ..settings import Settings
from ..settings.framework import SETTING, check_slips
from .limits import ProjectLimits
from .request import SCOPE, django_user

_lock = threading.RLock()  # reentrant: importing the functions of the settings may ask for the limiter
_current: list[tuple[object, ProjectLimits]] = []


def limiter() -> Limiter:
    """Return the limiter of ``settings.RATELIMIT_MW``, for example to ``reset`` a key or to ``peek``.

    Raises:
        ConfigError: A setting cannot work.
    """
    return project_limits().limits.limiter


def project_limits() -> ProjectLimits:
    """Return the limits of this process. Overridden settings apply from the next request on, with fresh counts."""
    source = getattr(django.conf.settings, SETTING, None)
    for current, project in _current:
        if current is source:
            return project
    with _lock:
        if not _current or _current[0][0] is not source:
            project = _build(source)
            _close()
            _current.append((source, project))
        return _current[0][1]


def _close() -> None:
    """Close the limiter of the previous settings, unless the project has built it."""
    while _current:
        _, project = _current.pop()
        if project.owned:
            project.limits.limiter.close()


@receiver(setting_changed)  # type: ignore[untyped-decorator] # Django has no types
def _forget(setting: str, **_: Any) -> None:
    """A test overrides the settings, or stops to: equal settings get fresh counts too."""
    if setting == SETTING:
        with _lock:
            _close()


def _build(source: Any) -> ProjectLimits:
    if source is None:
        check_slips(dir(django.conf.settings))
        source = {}
    with placed(SETTING):
        if not isinstance(source, Limiter | Settings | str | PathLike | Mapping):
            raise ConfigError(f"expected the path of a file, a dictionary, Settings or a Limiter; got {source!r}")
        kind = "limiter" if isinstance(source, Limiter) else "settings"
        table = dict(source) if isinstance(source, Mapping) else {kind: source}
        features = table.pop("features", {})
        if not isinstance(features, Mapping):
            raise ConfigError(f"expected a table of functions by feature; got {features!r}", "features")
        functions = {name: _import(read, f"features.{name}") for name, read in features.items()}
        rejection = _import(table.pop("rejection", None), "rejection")
        settings, limiter = table.pop("settings", None), _import(table.pop("limiter", None), "limiter")
        if settings is None and limiter is None:
            settings, table = table, {}
        adapter = {"user": django_user, SCOPE: lambda request: request.throttle_scope}
        limits = HttpLimiter(settings, limiter, functions, rejection, adapter, table, routes=True)  # type: ignore[arg-type]
        return ProjectLimits(limits, "user" in functions, owned=limiter is None)


def _import(value: Any, path: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return import_string(value)
    except ImportError as error:
        raise ConfigError(f"cannot be imported: {error}", path) from None
