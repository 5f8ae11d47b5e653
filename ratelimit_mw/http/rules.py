"""``HttpRules``: the rules of a middleware, and all that it derives from them.

An instance never changes. ``HttpLimiter`` replaces it as a whole, and a request keeps the one that it began with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from ..clock import monotonic
from ..decision import Verdict
from ..keys.parts import feature_of
from ..rules.client_checks import check_lists, check_rule
from ..rules.compiled import CompiledRule
from ..rules.marks import Mark
from ..rules.plan import Plan
from ..rules.ruleset import RuleSet
from ..settings import Settings
from ..settings.rules import DEFAULT_RULE
from .body import body_feature
from .client_ip import ClientIP
from .features import FeatureReader
from .headers import HeaderWriter
from .needs import Need, needs_of_lists, needs_of_rule
from .region import Region
from .route_checks import check_no_views

if TYPE_CHECKING:
    from .limiter import HttpLimiter

DECIDED: Final = "ratelimit_mw.decided"
"""The key of the ASGI scope or WSGI environ that holds the admissions so far, by limiter, the innermost last."""

OF_USER: Final = frozenset({"user", "group", "plan"})
"""The features that are known inside authentication."""


class HttpRules:
    """Raises ``ConfigError`` for rules and lists that cannot be decided here.

    ``settings`` are those of the limiter, without the arguments of the middleware. ``by_mark`` has the features that
    views provide.
    """

    settings: Settings
    """The settings of the limiter with the arguments of the middleware."""
    writer: HeaderWriter
    _build_reader: Callable[..., FeatureReader]

    def __init__(
        self, owner: HttpLimiter, every: RuleSet, settings: Settings, by_mark: Mapping[Mark, Collection[str]]
    ) -> None:
        before: HttpRules | None = getattr(owner, "in_force", None)
        self.owner = owner
        self.limiter = owner.limiter
        self.is_observed = self.limiter.is_observed
        self.before_user = owner.before_user
        self.of_limiter = settings
        self.watch = self.limiter.watch_of(settings)
        """The reloader that looks for changed settings; None if the settings are not watched."""
        if before is not None and before.of_limiter is settings:
            self.settings, self.writer, self._build_reader = before.settings, before.writer, before._build_reader
        else:
            self._use(settings)
        rules, parts, unknown = self._decided_here(every)
        provided = {every.rule_of(mark): names for mark, names in by_mark.items()}
        self._check_addresses(rules, provided)
        needs = {part: need for part, need in needs_of_lists(rules.lists).items() if part in parts}
        self.reader = self._reader_for(rules, needs, unknown, provided)
        left = [rule for rule in rules.rules if rule in unknown or not OF_USER.isdisjoint(rule.source.needs)]
        self.left = frozenset(rule.name for rule in left)
        """The rules that a middleware before the user leaves to the inner one, which knows the user and the route."""
        self.without_user = () if self.before_user or owner.gives_user else tuple(_without_user(rules, provided))
        """The effect on rules and lists that are decided here, where the framework provides no user. Else empty."""
        waits = any(rule.lookups or rule.source.wait_us for rule in rules.rules)
        self.may_wait = self.limiter.waits or self.reader.may_await or waits
        """Whether a decision may wait: for the store, a feature, a function of limits, or a slot."""
        self.has_names = any(map(_has_name, rules.rules))
        """Whether code of the application may know a rule by its name, for ``check``."""
        self.rules = rules
        self.plan = rules.plan_for
        # They are forgotten with these rules.
        self.plan_without, self.peek_plan = lru_cache(1024)(_plan_without), lru_cache(1024)(_peek_plan)

    def _use(self, settings: Settings) -> None:
        owner = self.owner
        self.settings = http = settings.replaced(**owner.options)
        self.writer = HeaderWriter(http.headers, http.reset, http.retry_jitter)
        self._build_reader = partial(
            FeatureReader,
            client_ip=ClientIP(http.trusted_proxies, http.forwarded_header, http.ipv6_prefix, http.nat64_prefixes),
            own=owner.functions,
            adapter=owner.adapter,
            body_feature=partial(body_feature, limit=http.body_limit, email_field=http.email_field),
            region=Region.from_settings(http),
        )

    def _decided_here(self, rules: RuleSet) -> tuple[RuleSet, tuple[str, ...], set[CompiledRule]]:
        """Return the rules, the parts of the lists, and the rules of which only the inner middleware knows enough."""
        if self.owner.has_routes:
            return rules, rules.lists.parts, set()
        if not self.before_user:
            check_no_views(rules)
            return rules, rules.lists.parts, set()
        rules, knows = rules.without_amendments(), self._build_reader({}).knows
        unknown = {rule for rule in rules.rules if rule.source.matches.views or not all(map(knows, rule.source.parts))}
        return rules, tuple(filter(knows, rules.lists.parts)), unknown

    def _check_addresses(self, rules: RuleSet, provided: Mapping[CompiledRule, Collection[str]]) -> None:
        """Raise ``ConfigError`` for an address that no client has. Your own ``ip`` may be anything."""
        if "ip" not in self.owner.own_features:
            check_lists(rules.lists, self.settings.ipv6_prefix)
            for rule in rules.rules:
                if "ip" not in provided.get(rule, ()):
                    check_rule(rule.source, self.settings.ipv6_prefix, f'rule "{rule.name}"')

    def _reader_for(
        self,
        rules: RuleSet,
        needs: dict[str, Need],
        unknown: Collection[CompiledRule],
        provided: Mapping[CompiledRule, Collection[str]],
    ) -> FeatureReader:
        """Return the reader of the features that the rules need, besides those in ``needs``.

        A rule that only your code decides, by its name, gets its features from your code.
        """
        named = [rule for rule in rules.rules if rule.source.matches.is_only_named]
        for rule in rules.rules:
            if rule not in unknown and rule not in named:
                needs = {**self._needs_of(rule, provided.get(rule, ())), **needs}
        passed = [part for rule in named for part in rule.source.parts]
        return self._build_reader(needs, routes=self.owner.has_routes, passed=passed)

    def _needs_of(self, rule: CompiledRule, provided: Collection[str]) -> dict[str, Need]:
        """Return the parts that the reader has to provide for a rule, each with the option that needs it."""
        given = {*provided, *(() if self.owner.has_routes else rule.captures.names)}
        return {part: need for part, need in needs_of_rule(rule).items() if feature_of(part) not in given}

    def settle_stated(self, verdict: Verdict) -> None:
        """Keep the stated costs until the end of the response."""

    def forget(self, verdict: Verdict, rule: str) -> None:
        self.limiter.forget(verdict, rule)

    def undecided(self, plan: Plan, native: Mapping[str, Any], before_user: bool = False) -> Plan:
        """Return the rest of a plan that outer middleware of this limiter has not decided.

        The lists are checked again, because the user may be known only now. A middleware before the user leaves some
        rules to the inner one.
        """
        outer = native.get(DECIDED, {}).get(self.limiter)
        names = (self.left if before_user else frozenset()).union(outer.decided if outer else ())
        return self.plan_without(plan, names) if names else plan

    def at(self) -> HttpRules:
        """Return the rules for a request that arrives, and look for changes when that is due."""
        if self.watch is not None and monotonic() >= self.watch.due_at:
            self.watch.look()
            return self.owner.in_force
        return self

    async def aat(self) -> HttpRules:
        """Async form of ``at``."""
        if self.watch is not None and monotonic() >= self.watch.due_at:
            await self.watch.alook()
            return self.owner.in_force
        return self


def _plan_without(plan: Plan, names: Collection[str]) -> Plan:
    return Plan([rule for rule in plan.rules if rule.name not in names], plan.lists)


def _peek_plan(rules: tuple[CompiledRule, ...]) -> Plan:
    return Plan(rules).without_costs


def requires_user(rule: CompiledRule) -> bool:
    """Return whether a rule never applies without a user. A key such as "user|ip" has another part instead of it."""
    matched = ((name,) for name, _ in rule.source.matches.features)
    return any({"user"} == set(map(feature_of, parts)) for parts in (*rule.source.entries, *matched))


def _without_user(rules: RuleSet, provided: Mapping[CompiledRule, Collection[str]]) -> Iterator[str]:
    """Yield what rules and lists do where no user is known. Your views pass it to rules that only they decide."""
    for rule in rules.rules:
        if "user" in rule.source.needs and not ("user" in provided.get(rule, ()) or rule.source.matches.is_only_named):
            yield f"the rule {rule.name!r} {'never applies' if requires_user(rule) else 'counts no user'}"
    for kind in ("deny", "allow"):
        if "user" in map(feature_of, rules.lists.names(kind)):
            yield f"the {kind} list by user never applies"


def _has_name(rule: CompiledRule) -> bool:
    return rule.source.matches.is_only_named or rule.source.name not in (None, DEFAULT_RULE)
