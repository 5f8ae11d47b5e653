"""A limiter that speaks HTTP: features, headers and rejections, built once from the arguments of a middleware."""

import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache, partial
from os import PathLike
from typing import Any, Final, cast

from ..decision import Verdict
from ..errors import ConfigError, error_path
from ..forksafe import create_lock
from ..keys.parts import feature_of
from ..limiter.limiter import Limiter
from ..rules.client_checks import check_lists, check_rule
from ..rules.declaration import check_names, checked_call
from ..rules.marks import Mark, ViewMarks
from ..rules.plan import Plan
from ..settings import HttpOptions, Settings, SettingsDict, SettingsSource, load_settings
from .body import body_feature
from .client_ip import ClientIP
from .features import FeatureReader, Read
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
        features: Mapping[str, Callable[[Any], Any]],
        reject: Callable[[Any, Verdict], Any] | None,
        adapter: Mapping[str, Read],
        options: HttpOptions,
        routes: bool = False,
    ) -> None:
        check_names(options, (*_ARGUMENTS, *HttpOptions.__annotations__), "argument")
        self.limiter = _limiter(settings, limiter)
        with error_path("rejection"):
            self.reject = None if reject is None else checked_call(reject, "the request", "the verdict")
        overridden = load_settings(cast(SettingsDict, options))
        self.settings = http = dataclasses.replace(
            self.limiter.settings, **{name: getattr(overridden, name) for name in options}
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
        self._has_own_ip = "ip" in features
        self._routes = routes
        self._provided: dict[Mark, Collection[str]] = {}
        self._adopting = create_lock(self, "_adopting", threading.Lock)
        self._prepare()

    is_outer = False
    """Whether an ASGI middleware with the same rules is inside. It decides the rules that need the user."""

    def adopt(self, views: Iterable[ViewMarks], provided: Mapping[Mark, Collection[str]] | None = None) -> None:
        """Add the limits that decorators have marked. Raises ``ConfigError`` for limits that cannot work."""
        views = list(views)
        self._provided |= provided or {}
        marks = [mark for view in views for mark in view.every]
        self.limiter.adopt(marks)
        for mark in marks:
            mark.is_routed = True
        for view in views:
            self.limiter.rules.check(view)
        self._prepare()

    def adopt_called(self, marks: Iterable[Mark]) -> None:
        """Add the limits of a function that a view calls, at its first call."""
        with self._adopting:
            if added := set(marks).difference(self.limiter.rules.marks):
                self.adopt([ViewMarks(tuple(added))])

    def adopt_no_routes(self) -> None:
        """Note that there are no routes. Raises ``ConfigError`` for rules that need views or path parameters."""
        self._routes = False
        self.adopt(())

    def _prepare(self) -> None:
        rules = self.limiter.rules
        provided = {rules.rule_of(mark): names for mark, names in self._provided.items()}
        needs = dict.fromkeys(rules.lists.parts, "a list")
        passed: list[str] = []
        if not self._routes:
            check_no_views(rules)
        for rule in rules.rules:
            for limit in rule.never_fitting:
                message = f"the cost {rule.fixed_cost} is above the limit {limit.quota}, so every request is rejected"
                raise ConfigError(message, "cost", f'rule "{rule.name}"')
            for part in rule.source.parts:
                if rule.source.matches.is_only_named:
                    passed.append(part)
                elif feature_of(part) not in provided.get(rule, ()):
                    needs.setdefault(part, f"rule {rule.name!r}")
        if not self._has_own_ip:  # your own ip may be anything
            check_lists(rules.lists, self.settings.ipv6_prefix)
            for rule in rules.rules:
                if "ip" not in provided.get(rule, ()):
                    check_rule(rule.source, self.settings.ipv6_prefix, f'rule "{rule.name}"')
        # The reader comes first: a request under the new rules can then read their features.
        self.reader = self._build_reader(needs, routes=self._routes, passed=passed)
        looks_up = any(rule.looks_up for rule in rules.rules)
        self.may_wait = self.limiter.waits or self.reader.may_await or looks_up
        """Whether a decision may wait, for the store, for a feature or for limits."""
        self.rules = rules
        self.plan = rules.plan_for

    def settle_stated(self, verdict: Verdict) -> None:
        """Keep the stated costs until the end of the response."""

    def forget(self, verdict: Verdict, rule: str) -> None:
        self.limiter.forget(verdict, rule)

    def is_decided(self, native: Mapping[str, Any]) -> bool:
        """Return whether a middleware with the same rules has decided this request before."""
        return any(map(self.is_same, native.get(DECIDED, ())))

    def undecided(self, plan: Plan, native: Mapping[str, Any], is_outer: bool = False) -> Plan:
        """Return the rest of a plan that no middleware with the same rules has decided before.

        The lists are checked again, because the user may be known only now. The outer middleware of two leaves the
        rules that need the user to the inner one.
        """
        names = [name for verdict in self.verdicts(native) for name in verdict.rules]
        if is_outer:
            names += [rule.name for rule in plan.rules if not OF_USER.isdisjoint(rule.source.needs)]
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
        """Return whether another limiter has the same rules."""
        own = self.limiter
        return own is other or bool(own.settings.rules and own.settings == other.settings)


@lru_cache(1024)
def plan_without(plan: Plan, names: tuple[str, ...]) -> Plan:
    return Plan([rule for rule in plan.rules if rule.name not in names], plan.lists)


def _limiter(settings: SettingsSource | None, limiter: Limiter | None) -> Limiter:
    if (settings is None) == (limiter is None):
        raise ConfigError('give the middleware either settings="ratelimit.toml" or limiter=Limiter(...)')
    if settings is not None and not isinstance(settings, _SOURCES):
        raise ConfigError(f"expected the path of a file, a dictionary or Settings; got {settings!r}", "settings")
    if settings is None and not isinstance(limiter, Limiter):
        raise ConfigError(f"expected a Limiter; got {limiter!r}", "limiter")
    return limiter if settings is None else Limiter.from_settings(settings)  # type: ignore[return-value]
