"""``ServedRules``: the rules in effect, and the features and the plan of a request to the API.

Rules that the service cannot decide are errors at its start: no limit goes missing silently.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ...clock import monotonic
from ...decision import Limit
from ...errors import ConfigError, RateLimitError, error_path
from ...http.client_ip import ClientIP
from ...http.headers import HeaderWriter
from ...http.needs import requires_user
from ...http.routes import check_no_views
from ...http.warnings import warn
from ...keys.features import INVALID, checked_name
from ...keys.parts import as_counted, part_of
from ...limiter.limiter import Limiter
from ...rules.compiled import CompiledRule
from ...rules.plan import Plan
from ...rules.ruleset import RuleSet
from ...settings import Settings
from ...stores import Store
from .gateway import Gateway, invalid_headers, path_of_target

_log = logging.getLogger("ratelimit_mw")
_SECONDS: Final = 1.0
"""The time for which the last reply of the store is true."""
_SENT: Final = ("ip", "user", "method", "path", "host", "region", "priority", "header", "cookie", "query")
"""The features, and families of features, that the request of a gateway has."""
_PATHS: Final = 'Count all paths together, or write a rule with match = { path = "..." } for each'
_FIX: Final = 'Set match = { view = "" } and decide the rule with POST /v1/check'


class ServedRules:
    """Follows the rules of a limiter. ``ConfigError`` for rules that the service cannot decide.

    Args:
        limiter: The limiter.
        gateway: The gateway that sends requests; None for none.
        has_users: Whether these requests name the user.
    """

    client_ip: ClientIP
    writer: HeaderWriter
    invalid_headers: re.Pattern[bytes]
    _prefixes: tuple[int, Iterable[Any]]

    def __init__(self, limiter: Limiter, gateway: Gateway | None, has_users: bool) -> None:
        self.limiter = limiter
        self.readiness = Readiness(limiter.store)
        self._gateway, self._has_users = gateway, has_users
        limiter.check_limit = self._check_limit  # before the limiter reads overrides that a command has set
        limiter.reloads.check(limiter.rules)
        with limiter.reloads.lock:
            with limiter.reloads.located():
                use = self.renew(limiter.rules, limiter.settings)
            use()
            limiter.reloads.users.add(self)

    def renew(self, rules: RuleSet, settings: Settings) -> Callable[[], None]:
        """Check rules that were read again. Return the function that puts them into effect."""
        check_no_views(rules.require_complete())
        if self._gateway:
            check_for_gateway(rules, settings, self._gateway, self._has_users)
        client_ip = ClientIP(settings.trusted_proxies, settings.forwarded_header)
        writer = HeaderWriter(settings.headers, settings.reset, settings.retry_jitter)
        invalid = invalid_headers(name[len("header:") :] for name in rules.needs if name.startswith("header:"))

        def use() -> None:
            self.client_ip, self.writer, self.invalid_headers = client_ip, writer, invalid
            self._ipv6_prefix = settings.ipv6_prefix

        return use

    def _check_limit(self, limit: Limit) -> None:
        """Raise ``ConfigError`` for a limit of a client that needs the response."""
        if limit.quota.concurrent:
            message = "the service sees no response, so it has no use for concurrent limits"
            raise ConfigError(f"{message}; got '{limit.quota}'")
        self.limiter.store.check(limit)

    def features(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return features by canonical name, in the form of those of a request."""
        with error_path("features"):
            return self.as_counted({checked_name(name): value for name, value in given.items()})

    def as_counted(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Return features as the requests of a gateway have them. ``path`` is that of a request line."""
        features = dict(features)
        for name in ("ip", "method", "path", "host"):
            value = features.get(name)
            if value is not None and value is not INVALID and not isinstance(value, str):
                raise ConfigError(f"expected text; got {value!r}", name)
        if isinstance(path := features.get("path"), str):
            features["path"] = path_of_target(path)
        return as_counted(features, self._ipv6_prefix)

    def plan(self, features: Mapping[str, Any], name: str | None) -> Plan:
        """Return the plan of one rule, or of those that match. ``ConfigError`` where a feature of them is not named.

        A feature that is missing in a request is named, too: its value is None.
        """
        rules = self.limiter.rules
        if name is not None:
            plan = rules.plan_named(rules.named(name).name, rules.lists)
        else:
            has_methods = any(rule.source.matches.methods for rule in rules.rules)
            used = {"method": has_methods, "path": rules.needs_path, "host": rules.needs_host}
            _check_named([name for name, is_used in used.items() if is_used], features, "a match")
            plan = self.limiter.match(features)
        for rule in plan.rules:
            if plan.needs_settlement:
                check_decided_at_once(rule)
            _check_named(rule.needs, features, f"rule {rule.name!r}")
        _check_named(rules.own_lists.needs if plan.lists else (), features, "a list")
        return plan


def _check_named(needs: Iterable[str], features: Mapping[str, Any], of: str) -> None:
    for name in needs:
        if name not in features:
            message = f"{of} uses the feature {name!r}. Add it, with null for a request that has none"
            raise ConfigError(message, "features")


class Readiness:
    """Whether the store replies. Every client may ask, so it is called once a second at most."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._due_at = 0.0
        self._is_ready = self._is_logged = False

    async def is_ready(self) -> bool:
        """Return whether the store replies, or has replied a second ago. A failure is logged once per outage."""
        if monotonic() >= self._due_at:
            self._due_at = monotonic() + _SECONDS
            try:
                await self._store.aping()
            except RateLimitError as error:
                if not self._is_logged:
                    _log.warning("/readyz: store %s unreachable (%s)", self._store.name, error)
                self._is_ready, self._is_logged = False, True
            else:
                self._is_ready, self._is_logged = True, False
        return self._is_ready


def check_for_gateway(rules: RuleSet, settings: Settings, gateway: Gateway, has_users: bool) -> None:
    """Raise ``ConfigError`` for rules that no request of a gateway can have.

    Args:
        rules: The rules to check.
        settings: Their settings.
        gateway: The gateway.
        has_users: Whether the gateway names the user of a request.
    """
    if not settings.trusted_proxies:
        message = 'the service must trust the gateway, which names the clients. Set trusted_proxies = ["127.0.0.1"]'
        raise ConfigError(message, "trusted_proxies")
    headers = {"region_header": settings.region_header, "priorities.header": settings.priorities.header}
    for name, header in headers.items():
        if not gateway.sends(header):
            raise ConfigError(f"a gateway does not send the header {header!r}. Choose another one", name)
    for rule in rules.rules:
        if not rule.source.matches.is_only_named:
            check_decided_at_once(rule)
            if "user" in rule.source.needs and not has_users:
                warn(f"the rule {rule.name!r} counts no user. Name the header of the gateway with --user-header")
            with rule.located():
                _check_sent(rule.source.parts, gateway, requires_user(rule) and not has_users)
    with error_path("lists"):
        _check_sent(rules.own_lists.parts, gateway, "user" in rules.own_lists.needs and not has_users)


def _check_sent(parts: tuple[str, ...], gateway: Gateway, lacks_user: bool) -> None:
    if lacks_user:
        raise ConfigError("uses the feature 'user'. Name the header of the gateway with --user-header")
    for part in parts:
        name = part.removeprefix("email:")
        family, _, header = part_of(name).feature.partition(":")
        if family not in _SENT or (family == "header" and not gateway.sends(header)):
            fix = _PATHS if name in ("endpoint", "view") else _FIX
            raise ConfigError(f"uses the feature {part!r}, which a gateway does not send. {fix}")


def check_decided_at_once(rule: CompiledRule) -> None:
    """Raise ``ConfigError`` for a rule that needs the response, which the service does not see."""
    if Plan([rule]).needs_settlement:
        message = "the service sees no response, so it has no use for concurrent limits, target and count_when"
        raise rule.error(f"{message}. Use the rule in the middleware of the application")
