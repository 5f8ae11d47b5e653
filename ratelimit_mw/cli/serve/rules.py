"""``ServedRules``: the rules in effect, and the features and the plan of a request to the API."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from ...errors import ConfigError, error_path
from ...http.client_ip import ClientIP
from ...http.headers import HeaderWriter
from ...http.route_checks import check_no_views
from ...keys.features import INVALID, checked_name
from ...keys.parts import as_counted
from ...limiter.limiter import Limiter
from ...rules.plan import Plan
from ...rules.ruleset import RuleSet
from ...settings import Settings
from .checks import check_decided_at_once, check_for_gateway, check_no_slots
from .gateway import Gateway, invalid_headers, path_of_target
from .readiness import Readiness

_CACHE_SIZE: Final = 1024


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
    _counted_ip: Callable[[str], str]

    def __init__(self, limiter: Limiter, gateway: Gateway | None, has_users: bool) -> None:
        self.limiter = limiter
        self.readiness = Readiness(limiter.store)
        self._gateway, self._has_users = gateway, has_users
        limiter._check_override = check_no_slots  # before the limiter reads those that a command has set
        with limiter.adopting:
            with limiter.located():
                use = self.renew(limiter.rules, limiter.settings)
            use()
            limiter.users.add(self)

    def renew(self, rules: RuleSet, settings: Settings) -> Callable[[], None]:
        """Check rules that were read again. Return the function that puts them into effect."""
        check_no_views(rules.require_complete())
        if self._gateway:
            check_for_gateway(rules, settings, self._gateway, self._has_users)
        client_ip = ClientIP(settings.trusted_proxies, settings.forwarded_header)
        forms = settings.ipv6_prefix, settings.nat64_prefixes
        counted_ip = lru_cache(_CACHE_SIZE)(lambda text: as_counted({"ip": text}, *forms)["ip"])
        writer = HeaderWriter(settings.headers, settings.reset, settings.retry_jitter)
        invalid = invalid_headers(name[len("header:") :] for name in rules.needs if name.startswith("header:"))

        def use() -> None:
            self.client_ip, self.writer, self._counted_ip = client_ip, writer, counted_ip
            self.invalid_headers = invalid

        return use

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
        if isinstance(text := features.get("ip"), str):
            features["ip"] = self._counted_ip(text)
        return as_counted(features, has_own_ip=True)

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
        _check_named(plan.needs, features, "a list")
        return plan


def _check_named(needs: Iterable[str], features: Mapping[str, Any], of: str) -> None:
    for name in needs:
        if name not in features:
            message = f"{of} uses the feature {name!r}. Add it, with null for a request that has none"
            raise ConfigError(message, "features")
