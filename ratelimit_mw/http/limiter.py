"""A limiter that speaks HTTP: features, headers and rejections, built once from the arguments of a middleware."""

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, cast

from ..decision import Verdict
from ..errors import ConfigError, error_path
from ..keys.features import Features
from ..keys.parts import as_counted
from ..limiter.limiter import Limiter
from ..rules.declaration import check_names, checked_call
from ..rules.marks import Mark, ViewMarks
from ..rules.ruleset import RuleSet
from ..settings import (
    OF_LIMITER,
    HttpOptions,
    Settings,
    SettingsDict,
    SettingsSource,
    checked_source,
    load_settings,
    with_options,
)
from .features import IDENTIFY, OwnFeatures, Read, provided_names
from .rules import HttpRules

_ARGUMENTS: Final = ("settings", "limiter", "features", "rejection", "before_user")


class HttpLimiter:
    """Built by a middleware from its arguments. Raises ``ConfigError`` for arguments that cannot work."""

    in_force: HttpRules
    """The rules that requests are decided by from now on. A request keeps those that it began with."""

    def __init__(
        self,
        settings: SettingsSource | None,
        limiter: Limiter | None,
        features: OwnFeatures,
        reject: Callable[[Any, Verdict], Any] | None,
        adapter: Mapping[str, Read],
        options: HttpOptions,
        routes: bool = False,
        before_user: bool = False,
    ) -> None:
        _check_arguments(options)
        self.limiter = _limiter(settings, limiter, options)
        with error_path("rejection"):
            self.reject = None if reject is None else checked_call(reject, "the request", "the verdict")
        overridden = load_settings(cast(SettingsDict, options))
        self.options = {name: getattr(overridden, name) for name in options if name not in OF_LIMITER}
        """The settings that arguments of the middleware override."""
        self.functions = features
        self.adapter = adapter
        self.own_features = provided_names(features)
        self.gives_user = not self.own_features.isdisjoint(("user", IDENTIFY))
        """Whether your functions may provide the user."""
        self.has_routes = routes
        self.before_user = before_user
        """Whether an inner middleware of this limiter decides the rules in ``HttpRules.left``."""
        self._provided: dict[Mark, Collection[str]] = {}
        self._exempting: dict[ViewMarks, None] = {}
        self._checks: dict[object, Callable[[HttpRules], object]] = {}
        self.named: set[str] = set()
        """The rules that code of the application names."""
        with self.limiter.adopting:
            self.limiter.users.add(self)
            if routes:  # else ``adopt_no_routes`` follows
                self._prepare(self.limiter.rules)

    def adopt(self, views: Iterable[ViewMarks], provided: Mapping[Mark, Collection[str]] | None = None) -> None:
        """Add the limits that decorators have marked. Raises ``ConfigError`` for limits that cannot work.

        Then no limit is added, and the earlier limits stay in effect.
        """
        views, provided = list(views), {**self._provided, **(provided or {})}
        marks = [mark for view in views for mark in view.every]

        def prepare(rules: RuleSet) -> None:
            for view in views:
                rules.check(view)
            self._prepare(rules, provided)

        self.limiter.adopt(marks, prepare)
        self._exempting |= dict.fromkeys(view for view in views if view.exempt)
        for mark in marks:
            mark.is_routed = True

    def adopt_no_routes(self) -> None:
        """Note that there are no routes. Raises ``ConfigError`` for rules that need views or path parameters.

        A middleware before the user leaves these rules to the inner one, as well as the rules that override decorators.
        """
        self.has_routes = False
        if self.before_user:
            self._prepare(self.limiter.rules)
        else:
            self.adopt(())

    def _prepare(self, every: RuleSet, by_mark: Mapping[Mark, Collection[str]] = MappingProxyType({})) -> None:
        """Put all rules into effect. Nothing changes before all checks have passed."""
        with self.limiter.located(*self.options):
            self.in_force = HttpRules(self, every, self.limiter.settings, by_mark)
        self._provided = dict(by_mark)

    def check(self, key: object, check: Callable[[HttpRules], object]) -> None:
        """Check the rules in effect, and later rules before they are used. It replaces the check of this ``key``."""
        with self.limiter.adopting:
            with self.limiter.located(*self.options):
                check(self.in_force)
            self._checks[key] = check

    def renew(self, rules: RuleSet, settings: Settings) -> Callable[[], None]:
        """Check rules that were read again. Return the function that puts them into effect."""
        if not hasattr(self, "in_force"):  # it will start with them
            return lambda: None
        for view in self._exempting:
            rules.check(view)
        for name in self.named - rules.by_name.keys():
            message = f"the rule {name!r} is missing, but the application calls it by its name. Keep it, or restart"
            raise ConfigError(message, "rules")
        with self.limiter.located(*self.options, settings=settings):
            later = HttpRules(self, rules, settings, self._provided)
            for check in tuple(self._checks.values()):
                check(later)

        def use() -> None:
            self.in_force = later

        return use

    def as_counted(self, features: Features) -> Features:
        """Return the features of a client as its requests have them."""
        names = ("ipv6_prefix", "nat64_prefixes")
        prefix, nat64 = (self.options.get(name, getattr(self.limiter.settings, name)) for name in names)
        return as_counted(features, prefix, nat64, "ip" in self.own_features)


def _check_arguments(options: HttpOptions) -> None:
    """Raise ``ConfigError`` for an unknown argument, and for a setting that is not an argument."""
    for name in options:
        if name in SettingsDict.__annotations__ and name not in HttpOptions.__annotations__:
            raise ConfigError(f'not an argument of the middleware. Pass settings={{"{name}": ...}}', name)
    check_names(options, (*_ARGUMENTS, *HttpOptions.__annotations__), "argument")


def _limiter(settings: SettingsSource | None, limiter: Limiter | None, options: HttpOptions) -> Limiter:
    own = [name for name in OF_LIMITER if options.get(name) is not None]
    if limiter is None:
        if settings is None and not own:
            raise ConfigError(
                'give the middleware either limits="100/minute", settings="ratelimit.toml" or limiter=Limiter(...). '
                "For limits in decorators only, pass settings={}"
            )
        if settings is not None:
            checked_source(settings)
        return Limiter.from_settings(with_options(settings, options))
    if settings is not None:
        raise ConfigError("give the middleware either settings or a limiter, which has settings of its own")
    if not isinstance(limiter, Limiter):
        raise ConfigError(f"expected a Limiter; got {limiter!r}", "limiter")
    if own:
        raise ConfigError("the limiter has its own. Pass it to the limiter, or pass settings in its place", own[0])
    return limiter
