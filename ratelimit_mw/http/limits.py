"""The limits of a middleware: ``HttpLimits`` decides requests, and ``HttpLimiter`` replaces it as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, Final, cast

from ..clock import monotonic
from ..decision import Verdict
from ..errors import ConfigError, error_path
from ..keys.features import Features
from ..keys.parts import as_counted, feature_of
from ..limiter.limiter import Limiter
from ..rules.client_checks import check_lists, check_rule
from ..rules.compiled import CompiledRule
from ..rules.declaration import check_names, checked_call
from ..rules.marks import Mark, ViewMarks
from ..rules.plan import Plan
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
from ..settings.rules import DEFAULT_RULE
from .body import body_feature
from .client_ip import ClientIP
from .features import IDENTIFY, FeatureReader, OwnFeatures, Read, awaited, needs_of_lists, needs_of_rule, provided_names
from .headers import HeaderWriter
from .region import Region
from .request import Request
from .routes import check_no_views

DECIDED: Final = "ratelimit_mw.decided"
"""The key of the ASGI scope or WSGI environ that holds the admissions so far, by limiter, the innermost last."""
OF_USER: Final = frozenset({"user", "group", "plan"})
"""The features that are known inside authentication."""
_ARGUMENTS: Final = ("settings", "limiter", "features", "rejection", "before_user")


class HttpLimits:
    """The rules of a middleware, the reader of their features, and the writer of headers. They never change.

    A request keeps those that it began with. ``provided`` has the features that views provide for their marks. Raises
    ``ConfigError`` for rules and lists that cannot be decided here.
    """

    def __init__(
        self, owner: HttpLimiter, every: RuleSet, settings: Settings, provided: Mapping[Mark, Collection[str]]
    ) -> None:
        self.owner = owner
        self.limiter = owner.limiter
        self.reject = owner.reject
        """Your function that responds to a rejection."""
        self.before_user = owner.before_user
        self.settings = http = settings.replaced(**owner.options)
        """The settings of the limiter with the arguments of the middleware."""
        self.is_observed = self.limiter.is_observed
        self.watch = self.limiter.reloads.watch_of(settings)
        """Looks for changed settings; None if the settings are not watched."""
        self.writer = HeaderWriter(http.headers, http.reset, http.retry_jitter)
        build_reader = partial(
            FeatureReader,
            client_ip=ClientIP(http.trusted_proxies, http.forwarded_header, http.ipv6_prefix, http.nat64_prefixes),
            own=owner.functions,
            adapter=owner.adapter,
            body_feature=partial(body_feature, limit=http.body_limit, email_field=http.email_field),
            region=Region.from_settings(http),
        )
        if not (owner.has_routes or owner.before_user):
            check_no_views(every)
        leaves = owner.before_user and not owner.has_routes
        knows = build_reader({}).knows if leaves else lambda _: True
        self.rules = rules = every.without_amendments() if leaves else every
        unknown = {
            rule
            for rule in rules.rules
            if leaves and (rule.source.matches.views or not all(map(knows, rule.source.parts)))
        }
        given = {every.rule_of(mark): names for mark, names in provided.items()}
        if "ip" not in owner.own_features:  # it may be anything
            _check_addresses(rules, http.ipv6_prefix, given)
        named = [rule for rule in rules.rules if rule.source.matches.is_only_named]
        needs = {part: need for part, need in needs_of_lists(rules.lists).items() if knows(part)}
        for rule in rules.rules:
            if rule not in unknown and rule not in named:
                names = {*given.get(rule, ()), *(() if owner.has_routes else rule.captures.names)}
                own = {part: need for part, need in needs_of_rule(rule).items() if feature_of(part) not in names}
                needs = {**own, **needs}
        # Your code passes the features of a rule that only it decides.
        passed = [part for rule in named for part in rule.source.parts]
        self.reader = build_reader(needs, routes=owner.has_routes, passed=passed)
        left = (rule for rule in rules.rules if rule in unknown or not OF_USER.isdisjoint(rule.source.needs))
        self.left = frozenset(rule.name for rule in left)
        """The rules that a middleware before the user leaves to the inner one, which knows the user and the route."""
        self.without_user = () if owner.before_user or owner.gives_user else tuple(_without_user(rules, given))
        """The effect on rules and lists that are decided here, where the framework provides no user. Else empty."""
        waits = any(rule.lookups or rule.source.wait_us for rule in rules.rules)
        self.may_wait = self.limiter.waits or self.reader.may_await or waits
        """Whether a decision may wait: for the store, a feature, a function of limits, or a slot."""
        self.has_names = any(map(_has_name, rules.rules))
        """Whether code of the application may know a rule by its name, for ``check``."""
        self.plan = rules.plan_for
        # They are forgotten with these rules.
        self.plan_without, self.peek_plan = lru_cache(1024)(_plan_without), lru_cache(1024)(_peek_plan)

    def read(
        self,
        plan: Plan,
        request: Request,
        provided: Mapping[str, Any] | None = None,
        resolve: Callable[[Any], Any] | None = None,
    ) -> dict[str, Any]:
        """Read the features of a plan. ``provided`` are not read, and ``resolve`` awaits those of async functions."""
        features = self.reader.read(plan, request, provided)
        return features if resolve is None else {name: resolve(value) for name, value in features.items()}

    async def aread(self, plan: Plan, request: Request, provided: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Read the features of a plan, and await those of async functions."""
        features = self.reader.read(plan, request, provided)
        return await awaited(features) if self.reader.may_await or provided else features

    def decide(
        self,
        plan: Plan,
        request: Request,
        provided: Mapping[str, Any] | None = None,
        resolve: Callable[[Any], Any] | None = None,
    ) -> Verdict:
        """Decide a plan. The arguments are those of ``read``."""
        return self.limiter.decide(plan, self.read(plan, request, provided, resolve), None, True, request)

    async def adecide(self, plan: Plan, request: Request, provided: Mapping[str, Any] | None = None) -> Verdict:
        """Async form of ``decide``. Functions of features may be async."""
        return await self.limiter.adecide(plan, await self.aread(plan, request, provided), None, True, request)

    def undecided(self, plan: Plan, native: Mapping[str, Any], before_user: bool = False) -> Plan:
        """Return the rest of a plan that outer middleware of this limiter has not decided.

        The lists are checked again, because the user may be known only now. A middleware before the user leaves some
        rules to the inner one.
        """
        outer = native.get(DECIDED, {}).get(self.limiter)
        names = (self.left if before_user else frozenset()).union(outer.decided_rules if outer else ())
        return self.plan_without(plan, names) if names else plan

    def at(self) -> HttpLimits:
        """Return the limits for a request that arrives, and look for changes when that is due."""
        if self.watch is not None and monotonic() >= self.watch.due_at:
            self.watch.look()
            return self.owner.in_force
        return self

    async def aat(self) -> HttpLimits:
        """Async form of ``at``."""
        if self.watch is not None and monotonic() >= self.watch.due_at:
            await self.watch.alook()
            return self.owner.in_force
        return self

    def settle_stated(self, verdict: Verdict) -> None:
        """Keep the stated costs until the end of the response."""

    def forget(self, verdict: Verdict, rule: str) -> None:
        self.limiter.forget(verdict, rule)


class HttpLimiter:
    """Built by a middleware from its arguments. Raises ``ConfigError`` for arguments that cannot work."""

    in_force: HttpLimits
    """The limits of requests that begin from now on."""

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
        """Whether an inner middleware of this limiter decides the rules in ``HttpLimits.left``."""
        self.named: set[str] = set()
        """The rules that code of the application names."""
        self._provided: dict[Mark, Collection[str]] = {}
        self._exempting: dict[ViewMarks, None] = {}
        self._checks: dict[object, Callable[[HttpLimits], object]] = {}
        with self.limiter.reloads.lock:
            self.in_force = self._build(self.limiter.rules, self.limiter.settings)
            self.limiter.reloads.users.add(self)

    def adopt(
        self,
        views: Iterable[ViewMarks] = (),
        provided: Mapping[Mark, Collection[str]] | None = None,
        check: Callable[[HttpLimits], object] | None = None,
        key: object = None,
    ) -> None:
        """Add the limits that decorators have marked. Raises ``ConfigError`` for limits that cannot work.

        Then no limit is added, and the earlier limits stay in effect. ``check`` also checks later limits before they
        are used. It replaces the check of this ``key``.
        """
        views = list(views)
        marks = [mark for view in views for mark in view.every]

        def prepare(rules: RuleSet) -> None:
            for view in views:
                rules.check(view)
            before = self._provided, self._checks
            self._provided = {**self._provided, **(provided or {})}
            self._checks = {**self._checks, **({key: check} if check else {})}
            try:
                self.in_force = self._build(rules, self.limiter.settings)
            except BaseException:
                self._provided, self._checks = before
                raise

        self.limiter.reloads.adopt(marks, prepare)
        self._exempting |= dict.fromkeys(view for view in views if view.exempt)

    def adopt_no_routes(self) -> None:
        """Note that there are no routes. Raises ``ConfigError`` for rules that need views or path parameters.

        A middleware before the user leaves these rules to the inner one, as well as the rules that override decorators.
        """
        self.has_routes = False
        if self.before_user:
            self.in_force = self._build(self.limiter.rules, self.limiter.settings)
        else:
            self.adopt()

    def renew(self, rules: RuleSet, settings: Settings) -> Callable[[], None]:
        """Check rules that were read again. Return the function that puts them into effect."""
        for view in self._exempting:
            rules.check(view)
        for name in self.named - rules.by_name.keys():
            message = f"the rule {name!r} is missing, but the application calls it by its name. Keep it, or restart"
            raise ConfigError(message, "rules")
        later = self._build(rules, settings)
        return lambda: setattr(self, "in_force", later)

    def _build(self, rules: RuleSet, settings: Settings) -> HttpLimits:
        """Return limits that passed all checks."""
        with self.limiter.reloads.located(*self.options, settings=settings):
            limits = HttpLimits(self, rules, settings, self._provided)
            for check in self._checks.values():
                check(limits)
        return limits

    def as_counted(self, features: Features) -> Features:
        """Return the features of a client as its requests have them."""
        names = ("ipv6_prefix", "nat64_prefixes")
        prefix, nat64 = (self.options.get(name, getattr(self.limiter.settings, name)) for name in names)
        return as_counted(features, prefix, nat64, "ip" in self.own_features)


def requires_user(rule: CompiledRule) -> bool:
    """Return whether a rule never applies without a user. A key such as "user|ip" has another part instead of it."""
    matched = ((name,) for name, _ in rule.source.matches.features)
    return any({"user"} == set(map(feature_of, parts)) for parts in (*rule.source.entries, *matched))


def _without_user(rules: RuleSet, provided: Mapping[CompiledRule, Collection[str]]) -> Iterator[str]:
    """Yield what rules and lists do where no user is known. Your views pass it to rules that only they decide."""
    for rule in rules.rules:
        if "user" in rule.source.needs and not ("user" in provided.get(rule, ()) or rule.source.matches.is_only_named):
            yield f"the rule {rule.name!r} may {'never apply' if requires_user(rule) else 'count no user'}"
    for kind in ("deny", "allow"):
        if "user" in map(feature_of, rules.lists.names(kind)):
            yield f"the {kind} list by user may never apply"


def _check_addresses(rules: RuleSet, ipv6_prefix: int, provided: Mapping[CompiledRule, Collection[str]]) -> None:
    """Raise ``ConfigError`` for an address that no client has."""
    check_lists(rules.lists, ipv6_prefix)
    for rule in rules.rules:
        if "ip" not in provided.get(rule, ()):
            check_rule(rule.source, ipv6_prefix, f'rule "{rule.name}"')


def _plan_without(plan: Plan, names: Collection[str]) -> Plan:
    return Plan([rule for rule in plan.rules if rule.name not in names], plan.lists)


def _peek_plan(rules: tuple[CompiledRule, ...]) -> Plan:
    return Plan(rules).without_costs


def _has_name(rule: CompiledRule) -> bool:
    return rule.source.matches.is_only_named or rule.source.name not in (None, DEFAULT_RULE)


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
