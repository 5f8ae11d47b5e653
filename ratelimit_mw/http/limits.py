"""The limits of a middleware: ``HttpLimits`` decides requests, and ``HttpLimiter`` replaces it as a whole."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, cast

from ..decision import Verdict
from ..errors import ConfigError, error_path
from ..keys.features import Features
from ..keys.parts import as_counted
from ..limiter.limiter import Limiter
from ..rules.declaration import check_names, checked_call
from ..rules.marks import Mark
from ..rules.plan import Plan
from ..rules.ruleset import RuleSet
from ..runtime.blocking import Call, blocking_call, twins
from ..settings import LIMITER_OPTIONS, HttpOptions, Settings, SettingsDict, SettingsSource, load_settings, with_options
from .features import FeatureReader
from .functions import IDENTIFY, CheckedFunctions, FeatureFunctions, Read
from .headers import HeaderWriter
from .needs import RulesHere
from .rejection import PreparedRejections
from .request import Request
from .routes import Route, check_marks, check_no_views, check_routes

_ARGUMENTS: Final = ("settings", "limiter", "features", "rejection", "before_user")


class HttpLimits:
    """The rules of a middleware, the reader of their features, and the writer of headers. They never change.

    A request keeps those that it began with. Raises ``ConfigError`` for rules and lists that cannot be decided here.
    """

    def __init__(self, http_limiter: HttpLimiter, all_rules: RuleSet, settings: Settings, has_routes: bool) -> None:
        self.limiter = http_limiter.limiter
        self.settlement = self.limiter.settlement
        self.custom_rejection = http_limiter.custom_rejection
        """Your function that responds to a rejection."""
        self.before_user = http_limiter.before_user
        self.settings = http = settings.replace(**http_limiter.options)
        """The settings of the limiter with the arguments of the middleware."""
        self.is_observed = self.limiter.is_observed
        self.is_announced = bool(self.limiter.observers.early)
        self.watch = self.limiter.reloads.watch
        """A request that finds it due looks for changed settings, and uses those; None where nothing changes."""
        self.writer = HeaderWriter(http.headers, http.reset, http.retry_jitter, http_limiter.encodes)
        self.rejections = PreparedRejections(self.writer)
        self.functions = functions = http_limiter.functions
        self.named_in_code = http_limiter.named_in_code
        reading = http, functions, http_limiter.framework_reads
        if not (has_routes or http_limiter.before_user):
            check_no_views(all_rules, functions.may_provide)
        leaves = http_limiter.before_user and not has_routes
        here = RulesHere(all_rules, has_routes, FeatureReader({}, *reading).knows if leaves else None)
        if "ip" not in functions.may_provide:  # it may be anything
            here.check_addresses(http.ipv6_prefix)
        here.check_parameters(functions.may_provide)
        self.rules, self.left_to_inner = here.rules, here.left_to_inner
        self.reader = FeatureReader(here.needs, *reading, has_routes, here.optional)
        is_known = http_limiter.before_user or http_limiter.gives_user
        self.without_user = () if is_known else tuple(here.without_user())
        """The effect on rules and lists that are decided here, where the framework provides no user. Else empty."""
        may_wait = self.limiter.waits or self.reader.may_await or self.reader.reads_bodies or here.waits
        self.decides_at_once = not may_wait
        """Whether no decision waits: for the store, a feature, the body, a function of limits, or a slot."""
        # They are forgotten with these rules.
        self.plan_without = lru_cache(1024)(_plan_without)
        self.peek_plan = lru_cache(1024)(lambda rules: Plan(rules).without_costs)

    async def _read(
        self, call: Call, plan: Plan, request: Request, provided: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Read the features of a plan, without those that are provided. Await those of async functions."""
        features = self.reader.read(plan, request, provided)
        if not (self.reader.may_await or provided):
            return features
        for name, value in features.items():
            if type(value) is not str and inspect.isawaitable(value):
                features[name] = request.wait_for(value) if call is blocking_call else await value
        return features

    read, aread = twins(_read)

    async def _decide(
        self, call: Call, plan: Plan, request: Request, provided: Mapping[str, Any] | None = None
    ) -> Verdict:
        """Decide a plan. The arguments are those of ``read``."""
        features = await self._read(call, plan, request, provided)
        verdict: Verdict = await call(self.limiter, "decide", plan, features, None, True, request)
        return verdict

    decide, adecide = twins(_decide)


Checks = dict[object, Callable[[HttpLimits], object]]
"""The functions that compare limits with the routes, by router."""


class HttpLimiter:
    """Built by a middleware from its arguments. Raises ``ConfigError`` for arguments that cannot work."""

    in_force: HttpLimits
    """The limits of requests that begin from now on."""

    def __init__(
        self,
        settings: SettingsSource | None,
        limiter: Limiter | None,
        features: FeatureFunctions,
        rejection: Callable[[Any, Verdict], Any] | None,
        framework_reads: Mapping[str, Read],
        options: HttpOptions,
        has_routes: bool = True,
        before_user: bool = False,
        encodes: bool = False,
    ) -> None:
        _check_arguments(options)
        self.encodes = encodes
        """Whether headers are bytes, as ASGI has them."""
        self.limiter = _given_or_new_limiter(settings, limiter, options)
        with error_path("rejection"):
            self.custom_rejection = None if rejection is None else checked_call(rejection, "the request", "the verdict")
        overridden = load_settings(cast(SettingsDict, options))
        self.options = {name: getattr(overridden, name) for name in options if name not in LIMITER_OPTIONS}
        """The settings that arguments of the middleware override."""
        self.functions = CheckedFunctions(features)
        self.framework_reads = framework_reads
        """The functions of the features that the framework provides, such as the user."""
        self.gives_user = not self.functions.may_provide.isdisjoint(("user", IDENTIFY))
        """Whether your functions may provide the user."""
        self.before_user = before_user
        """Whether an inner middleware of this limiter decides the rules in ``HttpLimits.left_to_inner``."""
        self.named_in_code: set[str] = set()
        """The rules that code of the application names."""
        self._has_routes = has_routes
        self._checks: Checks = {}
        with self.limiter.reloads.lock:
            self.renew(self.limiter.rules, self.limiter.settings)()
            self.limiter.reloads.middlewares.add(self)

    def adopt(
        self,
        routes: Collection[Route] = (),
        marks: Iterable[Mark] = (),
        check: Callable[[HttpLimits], object] | None = None,
        key: object = None,
        is_whole: bool = True,
    ) -> None:
        """Add the limits that are marked on the views of routes, and other marks.

        Raises ``ConfigError`` for limits that cannot work, and for rules that no route fits where ``is_whole``: these
        are all routes. Then no limit is added, and the earlier limits stay in effect. Later limits are checked before
        they are used, also by ``check``. These checks replace those of the same ``key``.
        """
        views = [marks for route in routes for marks in route.marked.values()]

        def check_all(limits: HttpLimits) -> None:
            for view in views:
                limits.rules.check_exemptions(view)
            check_marks(routes, limits.rules)
            if is_whole:
                check_routes(routes, limits.rules, limits.functions.may_provide)
            if check is not None:
                check(limits)

        def derive(rules: RuleSet) -> None:
            checks = {**self._checks, key: check_all}  # read here, where the lock of the rules is held
            self.renew(rules, self.limiter.settings, checks)()

        self.limiter.reloads.adopt([*(mark for view in views for mark in view.all_marks), *marks], derive)

    def adopt_no_routes(self) -> None:
        """Note that there are no routes. Raises ``ConfigError`` for rules that need views or path parameters.

        A middleware before the user leaves these rules to the inner one, as well as the rules that override decorators.
        """
        self._has_routes = False
        if self.before_user:
            self.renew(self.limiter.rules, self.limiter.settings)()
        else:
            self.adopt()

    def renew(self, rules: RuleSet, settings: Settings, checks: Checks | None = None) -> Callable[[], None]:
        """Check rules at the start, for new routes and at a reload. Return the function that puts them into effect."""
        checks = checks or self._checks
        for name in self.named_in_code - rules.by_name.keys():
            message = f"the rule {name!r} is missing, but the application calls it by its name. Keep it, or restart"
            raise ConfigError(message, "rules")
        with self.limiter.reloads.located(*self.options, settings=settings):
            limits = HttpLimits(self, rules, settings, self._has_routes)
            for check in checks.values():
                check(limits)

        def put_into_effect() -> None:
            self.in_force, self._checks = limits, checks

        return put_into_effect

    def as_counted(self, features: Features) -> Features:
        """Return the features of a client as its requests have them."""
        prefix = self.options.get("ipv6_prefix", self.limiter.settings.ipv6_prefix)
        return as_counted(features, prefix, "ip" in self.functions.may_provide)


def _plan_without(plan: Plan, names: Collection[str]) -> Plan:
    return Plan([rule for rule in plan.rules if rule.name not in names], plan.lists)


def _check_arguments(options: HttpOptions) -> None:
    """Raise ``ConfigError`` for an unknown argument, and for a setting that is not an argument."""
    for name in options:
        if name in SettingsDict.__annotations__ and name not in HttpOptions.__annotations__:
            raise ConfigError(f'not an argument of the middleware. Pass settings={{"{name}": ...}}', name)
    check_names(options, (*_ARGUMENTS, *HttpOptions.__annotations__), "argument")


def _given_or_new_limiter(settings: SettingsSource | None, limiter: Limiter | None, options: HttpOptions) -> Limiter:
    of_limiter = [name for name in LIMITER_OPTIONS if options.get(name) is not None]
    if limiter is None:
        if settings is None and not of_limiter:
            raise ConfigError(
                'give the middleware either limits="100/minute", settings="ratelimit.toml" or limiter=Limiter(...). '
                "For limits in decorators only, pass settings={}"
            )
        return Limiter.from_settings(with_options(Settings() if settings is None else settings, options))
    if settings is not None:
        raise ConfigError("give the middleware either settings or a limiter, which has settings of its own")
    if not isinstance(limiter, Limiter):
        raise ConfigError(f"expected a Limiter; got {limiter!r}", "limiter")
    if of_limiter:
        raise ConfigError(
            "the limiter has its own. Pass it to the limiter, or pass settings in its place", of_limiter[0]
        )
    return limiter
