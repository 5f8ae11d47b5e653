"""A limiter that speaks HTTP: features, headers and rejections, built once from the arguments of a middleware."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache, partial
from os import PathLike
from types import MappingProxyType
from typing import Any, Final, cast

from ..decision import Verdict
from ..errors import ConfigError, error_path
from ..keys.parts import feature_of
from ..limiter.limiter import Limiter
from ..rules.client_checks import check_lists, check_rule
from ..rules.declaration import check_names, checked_call
from ..rules.decorators import marks_made
from ..rules.marks import Mark, ViewMarks
from ..rules.names import printable
from ..rules.plan import CompiledRule, Plan
from ..rules.ruleset import RuleSet
from ..settings import OF_LIMITER, HttpOptions, Settings, SettingsDict, SettingsSource, load_settings, with_options
from ..stores import redacted_url
from .body import body_feature
from .client_ip import ClientIP
from .features import IDENTIFY, FeatureReader, OwnFeatures, Read, checked_functions
from .headers import HeaderWriter
from .region import Region
from .route_checks import check_no_views

DECIDED: Final = "ratelimit_mw.decided"
"""The key of the ASGI scope or WSGI environ that holds the admissions so far, by limiter, the innermost last."""

OF_USER: Final = frozenset({"user", "group", "plan"})
"""The features that are known inside of authentication."""
_ARGUMENTS: Final = ("settings", "limiter", "features", "rejection")
_SOURCES: Final = (str, PathLike, Mapping, Settings)


class HttpLimiter:
    """Built by a middleware from its arguments. Raises ``ConfigError`` for arguments that cannot work."""

    def __init__(
        self,
        settings: SettingsSource | None,
        limiter: Limiter | None,
        features: OwnFeatures,
        reject: Callable[[Any, Verdict], Any] | None,
        adapter: Mapping[str, Read],
        options: HttpOptions,
        routes: bool = False,
    ) -> None:
        _check_arguments(options)
        self.limiter = _limiter(settings, limiter, options)
        with error_path("rejection"):
            self.reject = None if reject is None else checked_call(reject, "the request", "the verdict")
        overridden = load_settings(cast(SettingsDict, options))
        self.settings = http = dataclasses.replace(
            self.limiter.settings, **{name: getattr(overridden, name) for name in options if name not in OF_LIMITER}
        )
        self.writer = HeaderWriter(http.headers, http.reset, http.retry_jitter)
        self._build_reader = partial(
            FeatureReader,
            client_ip=ClientIP(http.trusted_proxies, http.forwarded_header, http.ipv6_prefix, http.nat64_prefixes),
            own=features,
            adapter=adapter,
            body_feature=partial(body_feature, limit=http.body_limit, email_field=http.email_field),
            region=Region.from_settings(http),
        )
        self.own_features = frozenset(checked_functions(features))
        self._routes = routes
        self._provided: dict[Mark, Collection[str]] = {}
        if routes:  # else ``adopt_no_routes`` follows
            self._prepare(self.limiter.rules)

    is_outer = False
    """Whether a middleware with the same rules is inside. It decides the rules in ``left``."""

    def adopt(self, views: Iterable[ViewMarks], provided: Mapping[Mark, Collection[str]] | None = None) -> None:
        """Add the limits that decorators have marked. Raises ``ConfigError`` for limits that cannot work.

        Then no limit is added, and the earlier limits stay in force.
        """
        views, provided = list(views), {**self._provided, **(provided or {})}
        marks = [mark for view in views for mark in view.every]

        def prepare(rules: RuleSet) -> None:
            for view in views:
                rules.check(view)
            self._prepare(rules, provided)

        overridden = self.limiter.rules.unused.keys() - {mark.rule.name or printable(mark.view) for mark in marks}
        self.limiter.adopt([*marks, *_called_later(overridden)], prepare)
        for mark in marks:
            mark.is_routed = True

    def adopt_called(self, marks: Iterable[Mark]) -> list[Mark]:
        """Add the limits of a function that a view calls, at its first call. Return the marks that it had then."""
        with self.limiter.adopting:
            known = self.rules.marks
            marks = [mark if mark in known else _earlier(mark, known) for mark in marks]
            if added := set(marks).difference(known):
                self.adopt([ViewMarks(tuple(added))])
            return marks

    def adopt_named(self, names: Collection[str]) -> bool:
        """Add the limits of functions that no view has called yet, by their names. Return whether there are any."""
        if marks := _called_later(names):
            self.adopt_called(marks)
        return bool(marks)

    def adopt_no_routes(self) -> None:
        """Note that there are no routes. Raises ``ConfigError`` for rules that need views or path parameters.

        An outer middleware leaves these rules to the inner one, as well as the rules that override decorators.
        """
        self._routes = False
        if self.is_outer:
            self._prepare(self.limiter.rules)
        else:
            self.adopt(())

    def _prepare(self, every: RuleSet, by_mark: Mapping[Mark, Collection[str]] = MappingProxyType({})) -> None:
        """Check the rules and lists that are decided here, and build the reader of their features.

        ``by_mark`` has the features that views provide. Nothing changes before all checks have passed.
        """
        rules, parts, unknown = self._decided_here(every)
        provided = {every.rule_of(mark): names for mark, names in by_mark.items()}
        passed: list[str] = []
        needs = dict.fromkeys(parts, "a list")
        for rule in rules.rules:
            _check_cost(rule)
            if rule.source.matches.is_only_named:
                passed += rule.source.parts
            elif rule not in unknown:
                needs = {**self._needs_of(rule, provided.get(rule, ())), **needs}
        if "ip" not in self.own_features:  # your own ip may be anything
            check_lists(rules.lists, self.settings.ipv6_prefix)
            for rule in rules.rules:
                if "ip" not in provided.get(rule, ()):
                    check_rule(rule.source, self.settings.ipv6_prefix, f'rule "{rule.name}"')
        # The reader comes first: a request under the new rules can then read their features.
        self.reader = self._build_reader(needs, routes=self._routes, passed=passed)
        left = [rule for rule in rules.rules if rule in unknown or not OF_USER.isdisjoint(rule.source.needs)]
        self.left = tuple(rule.name for rule in left)
        """The rules that an outer middleware leaves to the inner one, which knows the user, the route and more."""
        by_user = "user" in rules.lists.needs or any(map(requires_user, rules.rules))
        self.needs_user = by_user and not (self.is_outer or IDENTIFY in self.own_features)
        """Whether a rule or a list that is decided here never applies without the user of the framework."""
        waits = any(rule.looks_up or rule.source.wait_us for rule in rules.rules)
        self.may_wait = self.limiter.waits or self.reader.may_await or waits
        """Whether a decision may wait: for the store, a feature, a function of limits, or a slot."""
        self._provided = dict(by_mark)
        self.rules = rules
        self.plan = rules.plan_for

    def _decided_here(self, rules: RuleSet) -> tuple[RuleSet, tuple[str, ...], set[CompiledRule]]:
        """Return the rules, the parts of the lists, and the rules of which only the inner middleware knows enough."""
        if self._routes:
            return rules, rules.lists.parts, set()
        if not self.is_outer:
            check_no_views(rules)
            return rules, rules.lists.parts, set()
        rules, knows = rules.without_overrides(), self._build_reader({}).knows
        unknown = {rule for rule in rules.rules if rule.source.matches.views or not all(map(knows, rule.source.parts))}
        return rules, tuple(filter(knows, rules.lists.parts)), unknown

    def _needs_of(self, rule: CompiledRule, provided: Collection[str]) -> dict[str, str]:
        """Return the parts that the reader has to provide for a rule, each with the rule."""
        given = {*provided, *(() if self._routes else rule.captures.names)}
        return {part: f"rule {rule.name!r}" for part in rule.source.parts if feature_of(part) not in given}

    def settle_stated(self, verdict: Verdict) -> None:
        """Keep the stated costs until the end of the response."""

    def forget(self, verdict: Verdict, rule: str) -> None:
        self.limiter.forget(verdict, rule)

    def is_decided(self, native: Mapping[str, Any]) -> bool:
        """Return whether a middleware with the same rules has decided this request before."""
        return any(map(self.is_same, native.get(DECIDED, ())))

    def undecided(self, plan: Plan, native: Mapping[str, Any], is_outer: bool = False) -> Plan:
        """Return the rest of a plan that no middleware with the same rules has decided before.

        The lists are checked again, because the user may be known only now. The outer middleware of two leaves some
        rules to the inner one.
        """
        names = [name for verdict in self.verdicts(native) for name in verdict.rules]
        if is_outer:
            names += self.left
        return plan_without(plan, tuple(names))

    def verdicts(self, native: Mapping[str, Any]) -> list[Verdict]:
        """Return the verdicts of outer middleware with the same rules."""
        decided: Mapping[Limiter, Any] = native.get(DECIDED, {})
        return [admission.verdict for limiter, admission in decided.items() if self.is_same(limiter)]

    def admission(self, native: Mapping[str, Any]) -> Any:
        """Return the innermost admission of middleware with the same rules."""
        decided: Mapping[Limiter, Any] = native[DECIDED]
        return [admission for limiter, admission in decided.items() if self.is_same(limiter)][-1]

    def is_same(self, other: Limiter) -> bool:
        """Return whether another limiter has the same rules, and a store with the same counts."""
        own = self.limiter
        return own is other or (own.settings == other.settings and _is_from_settings(own) and _is_from_settings(other))


@lru_cache(1024)
def plan_without(plan: Plan, names: tuple[str, ...]) -> Plan:
    return Plan([rule for rule in plan.rules if rule.name not in names], plan.lists)


def requires_user(rule: CompiledRule) -> bool:
    """Return whether a rule never applies without a user. A key such as "user|ip" has another part in place of it."""
    matched = ((name,) for name, _ in rule.source.matches.features)
    return any({"user"} == set(map(feature_of, parts)) for parts in (*rule.source.entries, *matched))


def _check_cost(rule: CompiledRule) -> None:
    for limit in rule.never_fitting:
        message = f"the cost {rule.fixed_cost} is above the limit {limit.text}, so every request is rejected"
        raise ConfigError(message, "cost", f'rule "{rule.name}"')


def _is_from_settings(limiter: Limiter) -> bool:
    """Return whether a limiter has the rules and the kind of store that are in its settings."""
    rules = tuple(rule.source for rule in limiter.rules.everywhere)
    return rules == limiter.settings.rules and limiter.waits != redacted_url(limiter.settings.store).startswith(
        "memory:"
    )


def _earlier(mark: Mark, known: Iterable[Mark]) -> Mark:
    """Return the mark that a function inside of a view had in an earlier request, else this one."""
    same = [other for other in known if _is_same_decorator(mark, other)]
    for other in same:
        if other.rule == mark.rule:
            return other
    if same:
        message = "its options change from request to request. Decorate it outside of the view, or name each limit"
        raise ConfigError(message, of=f"@limit on {mark.view}")
    return mark


def _check_arguments(options: HttpOptions) -> None:
    """Raise ``ConfigError`` for an unknown argument, and for a setting that is not an argument."""
    for name in options:
        if name in SettingsDict.__annotations__ and name not in HttpOptions.__annotations__:
            raise ConfigError(f'not an argument of the middleware. Pass settings={{"{name}": ...}}', name)
    check_names(options, (*_ARGUMENTS, *HttpOptions.__annotations__), "argument")


def _is_same_decorator(mark: Mark, other: Mark) -> bool:
    """Return whether marks are of one decorator that ran again: in a view, or with a name, for example in a test."""
    is_same = (mark.place, mark.view, mark.rule.name) == (other.place, other.view, other.rule.name)
    return is_same and (bool(mark.place and mark.rule.name) or (mark.is_late and other.is_late))


def _called_later(names: Collection[str]) -> list[Mark]:
    """Return the marks of functions that no view has called yet, by the names of their rules, where they are unique."""
    found: dict[str, dict[str | Mark, Mark]] = {}
    for mark in sorted(marks_made, key=lambda mark: mark.order) if names else ():
        if mark.rule.unrouted and (name := mark.rule.name or printable(mark.view)) in names:
            found.setdefault(name, {})[mark.place if mark.rule.name else mark] = mark
    return [mark for marks in found.values() if len(marks) == 1 for mark in marks.values()]


def _limiter(settings: SettingsSource | None, limiter: Limiter | None, options: HttpOptions) -> Limiter:
    own = [name for name in OF_LIMITER if options.get(name) is not None]
    if limiter is None:
        if settings is None and not own:
            raise ConfigError(
                'give the middleware either limits="100/minute", settings="ratelimit.toml" or limiter=Limiter(...)'
            )
        if settings is not None and not isinstance(settings, _SOURCES):
            raise ConfigError(f"expected the path of a file, a dictionary or Settings; got {settings!r}", "settings")
        return Limiter.from_settings(with_options(settings, options))
    if settings is not None:
        raise ConfigError("give the middleware either settings or a limiter, which has settings of its own")
    if not isinstance(limiter, Limiter):
        raise ConfigError(f"expected a Limiter; got {limiter!r}", "limiter")
    if own:
        raise ConfigError("the limiter has its own. Pass it to the limiter, or pass settings in its place", own[0])
    return limiter
