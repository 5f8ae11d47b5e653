"""The limits of a Django project: built from ``settings.RATELIMIT_MW``, with the routes and plans of its requests.

The setting is the path of a file, a dictionary of settings, ``Settings`` or a ``Limiter``. A dictionary may also have
``features`` and ``rejection``, your own functions or their dotted paths. It may then have ``settings`` or ``limiter``
instead of the settings themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Set
from functools import lru_cache
from os import PathLike
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import django.conf
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.urls import get_resolver
from django.utils.module_loading import import_string

from ..errors import ConfigError, error_path
from ..http.limits import HttpLimiter, HttpLimits
from ..http.warnings import warn_at_start
from ..limiter.limiter import Limiter
from ..rules.ruleset import RuleSet
from ..settings import SETTING, Settings, check_slips
from .request import SCOPE, django_user
from .routes import URLRoutes, throttling

_lock = threading.RLock()  # reentrant: importing the functions of the settings may ask for the limiter


def limiter() -> Limiter:
    """Return the limiter of ``settings.RATELIMIT_MW``, for example to ``reset`` a key or to ``peek``.

    Raises:
        ConfigError: A setting cannot work.
    """
    return project_limits().http_limiter.limiter


def project_limits() -> ProjectLimits:
    """Return the limits of this process."""
    with _lock:
        ProjectLimits.current = ProjectLimits.current or ProjectLimits(getattr(django.conf.settings, SETTING, None))
        return ProjectLimits.current


@receiver(setting_changed)  # type: ignore[untyped-decorator] # Django has no types
def _forget(setting: str, **_: Any) -> None:
    """Forget the limits when a test overrides the settings, or stops to. Later requests have fresh counts."""
    if setting in (SETTING, "REST_FRAMEWORK"):
        with _lock:
            project, ProjectLimits.current = ProjectLimits.current, None
            if project is not None and project.owned:
                project.http_limiter.limiter.close()


def _import(value: Any, path: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return import_string(value)
    except ImportError as error:
        raise ConfigError(f"cannot be imported: {error}", path) from None


class ProjectLimits:
    """The limits of a project, for all its URLconfs. ``source`` is the value of the setting."""

    current: ClassVar[ProjectLimits | None] = None
    """The limits of the settings now, once something asked for them."""

    def __init__(self, source: Any) -> None:
        self.by_resolver: WeakKeyDictionary[Any, URLRoutes] = WeakKeyDictionary()
        if source is None:
            check_slips(dir(django.conf.settings))
            source = {}
        with error_path(SETTING):
            self._build(source)

    def _build(self, source: Any) -> None:
        if not isinstance(source, Limiter | Settings | str | PathLike | Mapping):
            raise ConfigError(f"expected the path of a file, a dictionary, Settings or a Limiter; got {source!r}")
        kind = "limiter" if isinstance(source, Limiter) else "settings"
        table = dict(source) if isinstance(source, Mapping) else {kind: source}
        features = _import(table.pop("features", {}), "features")
        if isinstance(features, Mapping):
            features = {name: _import(read, f"features.{name}") for name, read in features.items()}
        rejection, limiter = (_import(table.pop(name, None), name) for name in ("rejection", "limiter"))
        settings = table.pop("settings", None)
        if settings is None and limiter is None:
            settings, table = source if table == source else table, {}
        self._features: dict[str, Any] = {"user": django_user, SCOPE: _passed_by_a_throttle}
        self.http_limiter = HttpLimiter(settings, limiter, features, rejection, self._features, table)  # type: ignore[arg-type]
        self.owned = limiter is None

    def routes(self, urlconf: Any = None) -> URLRoutes:
        """Return the routes of a URLconf, by default the project's. Raises ``ConfigError`` for invalid marks."""
        resolver = get_resolver(urlconf)
        with _lock:
            return self.by_resolver.get(resolver) or self._read(resolver)

    def _read(self, resolver: Any) -> URLRoutes:
        routes = URLRoutes(resolver)
        drf = throttling()
        rates = drf.default_marks() if drf else ()
        self._features |= dict.fromkeys(drf.own_keys(routes.all) if drf else (), _passed_by_a_throttle)
        is_root = resolver is get_resolver(_root_urlconf())

        def check(limits: HttpLimits) -> None:
            if drf:
                drf.check_scopes(routes.all, limits.rules)
            if is_root:
                throttles = (each for route in routes.all for each in drf.throttles_of(route.target)) if drf else ()
                _check_used(limits.rules, {scope for _, scope in throttles})

        self.http_limiter.adopt(routes.all, rates, check, id(resolver), is_root)
        self.by_resolver[resolver] = routes
        warn_at_start(self.http_limiter)
        return routes


def _check_used(rules: RuleSet, scopes: Set[str]) -> None:
    """Raise ``ConfigError`` for a rule with a scope that no throttle has, so that nothing decides it."""
    for rule in rules.everywhere:
        wanted = rule.source.matches.values_of(SCOPE)
        if wanted and not rule.source.unrouted and scopes.isdisjoint(wanted):
            problem = f"no throttle of a view has the scope {wanted[0]!r}. Add Throttle to its throttle_classes"
            raise rule.error(f"{problem}. If this is on purpose, set unrouted = true in the rule", "match.scope")


def _passed_by_a_throttle(_: Any) -> None:
    """Return nothing: only a throttle knows the feature."""


def _root_urlconf() -> Any:
    """Return the URLconf that the rules are written for. Tests may override ``ROOT_URLCONF`` alone."""
    holder = django.conf.settings._wrapped
    while SETTING not in vars(holder) and hasattr(getattr(holder, "default_settings", None), "ROOT_URLCONF"):
        holder = holder.default_settings
    return holder.ROOT_URLCONF


@lru_cache(4)
def rules_by_scope(rules: RuleSet) -> dict[str, list[str]]:
    """Return the names of the rules for throttles, by scope."""
    by_scope: dict[str, list[str]] = {}
    for rule in rules.rules:
        for scope in rule.source.matches.values_of(SCOPE):
            by_scope.setdefault(scope, []).append(rule.name)
    return by_scope


@lru_cache(4)
def rules_of_throttles(rules: RuleSet) -> tuple[str, ...]:
    """Return the names of the rules that throttles decide, and not the middleware."""
    scopes = [name for names in rules_by_scope(rules).values() for name in names]
    rates = [rules.rule_of(mark).name for mark in rules.marks if mark.source == "throttle"]
    return tuple(dict.fromkeys(scopes + rates))
