"""What every middleware is made of: limiter, features, headers and rejections, put together once at start-up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Final, TypedDict

from ..decision import Verdict
from ..errors import ConfigError, placed
from ..limiter.limiter import Limiter
from ..rules.callables import checked_call
from ..rules.client_checks import check_lists, check_rule
from ..rules.marks import Mark, ViewMarks
from ..rules.plan import CompiledRule, Plan
from ..rules.ruleset import RuleSet
from ..settings import Settings, load_settings
from .body import Bodies
from .client_ip import ClientIP
from .features import FeatureReader, Read, awaited
from .headers import Header, HeaderWriter
from .region import Region
from .rejection import Rejection, rejection
from .request import Request

__all__ = ["HttpLimiter", "HttpOptions"]


class HttpOptions(TypedDict, total=False):
    """The settings that may be given to a middleware, too."""

    trusted_proxies: Sequence[str]
    forwarded_header: str
    ipv6_prefix: int
    headers: Sequence[str]
    reset: str
    retry_jitter: str | float
    email_field: str
    body_limit: str | int
    body_timeout: str | float
    region_database: str
    region_header: str


SettingsSource = str | PathLike[str] | Mapping[str, Any] | Settings
_SOURCES: Final = (str, PathLike, Mapping, Settings)


class HttpLimiter:
    """Built by a middleware from its arguments; raises ``ConfigError`` for any that cannot work.

    ``routes``: whether the middleware knows the application's routes.
    """

    def __init__(
        self,
        settings: SettingsSource | None,
        limiter: Limiter | None,
        features: Mapping[str, Callable[[Any], Any]],
        reject: Callable[[Any, Verdict], Any] | None,
        user: Read,
        options: HttpOptions,
        routes: bool = False,
    ) -> None:
        _check_names(options)
        if (settings is None) == (limiter is None):
            raise ConfigError('give the middleware either settings="ratelimit.toml" or limiter=Limiter(...)')
        if settings is not None and not isinstance(settings, _SOURCES):
            raise ConfigError(f"expected the path of a file, a dictionary or Settings; got {settings!r}", "settings")
        self.limiter = limiter if limiter is not None else Limiter.from_settings(settings)  # type: ignore[arg-type]
        if not isinstance(self.limiter, Limiter):
            raise ConfigError(f"expected a Limiter; got {limiter!r}", "limiter")
        with placed("rejection"):
            self.reject = None if reject is None else checked_call(reject, "the request", "the verdict")
        http = _with_options(self.limiter.settings, options)
        self.http = http
        self._client_ip = ClientIP(http.trusted_proxies, http.forwarded_header, http.ipv6_prefix)
        self._bodies = Bodies(http.body_limit, http.email_field)
        self._region = Region.of_settings(http)
        self._own = features
        self._user = user
        self._routes = routes
        self._later: dict[Mark, Collection[str]] = {}
        self.writer = HeaderWriter(http.headers, http.reset, http.retry_jitter)
        self._prepare()

    def adopt(self, views: Iterable[ViewMarks], later: Mapping[Mark, Collection[str]] | None = None) -> None:
        """What an application's views are marked with, once they are known; ``ConfigError`` for what cannot work.

        ``later``: marks that are decided on the way to the view, with the features that are given there.
        """
        views = list(views)
        self._later |= later or {}
        self.limiter.adopt(mark for view in views for mark in (*view.marks, *view.messages))
        for view in views:
            self.limiter.rules.check(view)
        self._prepare()

    def adopt_no_routes(self) -> None:
        """There are no routes after all; ``ConfigError`` for rules that need what only routes have."""
        self._routes = False
        self.adopt(())

    def _needs(self, rules: RuleSet) -> dict[str, str]:
        """The features that have to be read, and who needs them first."""
        given = self._given(rules)
        needs = dict.fromkeys(rules.lists.needs, "a list")
        for rule in rules.rules:
            for name in rule.source.needs:
                if name not in given.get(rule, ()):
                    needs.setdefault(name, f"rule {rule.name!r}")
        return needs

    def _given(self, rules: RuleSet) -> dict[CompiledRule, Collection[str]]:
        """What is given to rules on the way to the view."""
        return {rules.of(mark): names for mark, names in self._later.items()}

    def _check_clients(self, rules: RuleSet) -> None:
        """``ConfigError`` for addresses that no client can have here; your own ``ip`` may be anything."""
        if "ip" in self._own:
            return
        check_lists(rules.lists, self.http.ipv6_prefix)
        given = self._given(rules)
        for rule in rules.rules:
            if "ip" not in given.get(rule, ()):
                check_rule(rule.source, self.http.ipv6_prefix, f"rule {rule.name!r}")

    def _prepare(self) -> None:
        rules = self.limiter.rules
        self._check_clients(rules)
        # The reader first: with it, whoever meets the new rules can read what they need.
        self.reader = FeatureReader(
            self._needs(rules),
            self._client_ip,
            self._own,
            self._user,
            self._routes,
            self._bodies,
            self._region,
        )
        self.rules = rules

    def plan(self, request: Request, view: ViewMarks | None = None) -> Plan:
        rules = self.rules
        return rules.plan(request.method, request.path, request.host if rules.needs_host else "", view)

    def plan_of(self, marks: Iterable[Mark], request: Request, view: ViewMarks | None) -> Plan:
        """The plan of marks alone, for what is decided after the request; of ``view`` only exemptions count."""
        rules = self.rules
        return rules.plan_of(marks, request.method, request.host if rules.needs_host else "", view)

    async def decide(self, plan: Plan, request: Request, given: Mapping[str, Any]) -> Verdict:
        """The verdict of a plan on a request of which more is known than can be read: what is ``given``."""
        features = await awaited(self.reader.rest_of(plan, request, given))
        return await self.limiter.adecide(plan, features, request=request)

    def rejection(self, request: Request, verdict: Verdict, headers: list[Header]) -> Rejection:
        """The package's own answer to a rejected request, without the rate limit headers."""
        waits = [value.decode("ascii") for name, value in headers if name == b"retry-after"]
        return rejection(verdict, request.headers.get("accept", ""), waits[0] if waits else None)

    def has_decided(self, others: Iterable[Limiter]) -> bool:
        """Whether one of the limiters that decided this request is this one, or one with the same settings."""
        mine = self.limiter
        return any(mine is other or (mine.settings.rules and mine.settings == other.settings) for other in others)


def _check_names(options: HttpOptions) -> None:
    for name in options:
        if name not in HttpOptions.__annotations__:
            raise ConfigError(
                f"the middleware has no argument {name!r}; it has {', '.join(HttpOptions.__annotations__)}"
            )


def _with_options(settings: Settings, options: HttpOptions) -> Settings:
    """The HTTP settings, where the middleware's arguments replace the file's."""
    given = load_settings(dict(options))
    return dataclasses.replace(settings, **{name: getattr(given, name) for name in options})
