"""``settings.RATELIMIT_MW``: what may stand there, and the limits that come of it. Read when asked for.

It is a file's path, a dictionary of settings, ``Settings`` or a ``Limiter``. A dictionary may name your own functions,
too, by themselves or by their dotted paths: ``features`` and ``rejection``. Then ``settings`` or ``limiter`` may stand
in it in place of the settings themselves.
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
from ..http.features import checked_functions
from ..http.limiter import HttpLimiter
from ..limiter.limiter import Limiter
from ..settings import Settings, load_settings
from ..settings.framework import SETTING, check_slips
from .limits import ProjectLimits
from .request import SCOPE, user_of

__all__ = ["SETTING", "enforcer", "limiter"]

_lock = threading.RLock()  # what settings name is imported in it, and may ask for the limiter
_current: list[tuple[object, ProjectLimits]] = []


def limiter() -> Limiter:
    """The limiter behind ``settings.RATELIMIT_MW``: to ``reset`` a key, say, or to ``peek``."""
    return enforcer().limiter


def enforcer() -> ProjectLimits:
    """The limits of this process. Overridden settings count from the next request on, with counts of their own."""
    source = getattr(django.conf.settings, SETTING, None)
    for known, made in _current:
        if known is source:
            return made
    with _lock:
        if not _current or _current[0][0] is not source:
            made = _enforcer(source)
            _close()
            _current.append((source, made))
        return _current[0][1]


def _close() -> None:
    """What was made here for settings that no longer hold is closed; a limiter that was given is not ours to close."""
    while _current:
        _, made = _current.pop()
        if made.owned:
            made.limiter.close()


@receiver(setting_changed)  # type: ignore[untyped-decorator] # Django has no types
def _forget(setting: str, **_: Any) -> None:
    """A test begins or ends to override settings: the same ones again count anew, too."""
    if setting == SETTING:
        with _lock:
            _close()


def _enforcer(source: Any) -> ProjectLimits:
    if source is None:
        check_slips(dir(django.conf.settings))
    given = dict(source) if isinstance(source, Mapping) else {_kind_of(source): source}
    with placed(SETTING):
        features = given.pop("features", {})
        if not isinstance(features, Mapping):
            raise ConfigError(f"expected a table of functions by feature; got {features!r}", "features")
        functions = {name: _imported(read, f"features.{name}") for name, read in features.items()}
        own = {name: _of_django(read) for name, read in checked_functions(functions).items()}
        own.setdefault(SCOPE, lambda request: request.throttle_scope)
        rejection = _imported(given.pop("rejection", None), "rejection")
        told, limiter = given.pop("settings", None), _imported(given.pop("limiter", None), "limiter")
        if told is None and limiter is None:
            told, given = given, {}
        guard = HttpLimiter(_loaded(told), limiter, own, rejection, user_of, given, routes=True)  # type: ignore[arg-type]
        return ProjectLimits(guard, own, owned=limiter is None)


def _loaded(told: Any) -> Settings | None:
    if told is None or isinstance(told, Settings):
        return told
    if not isinstance(told, str | PathLike | Mapping):
        raise ConfigError(f"expected the path of a file, a dictionary, Settings or a Limiter; got {told!r}")
    try:
        return load_settings(told)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error}") from None


def _kind_of(source: object) -> str:
    return "limiter" if isinstance(source, Limiter) else "settings"


def _imported(value: Any, place: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return import_string(value)
    except ImportError as error:
        raise ConfigError(f"cannot be imported: {error}", place) from None


def _of_django(read: Any) -> Any:
    """A function of Django's request as one that the package's own request is given to."""
    return lambda request: read(request.django)
