"""Checks of rules that the service cannot decide: no limit goes missing silently."""

from collections.abc import Iterable
from typing import Final

from ...algorithms.limit import Limit
from ...errors import ConfigError
from ...http.notes import log_note
from ...http.rules import requires_user
from ...keys.parts import part_of
from ...rules.compiled import CompiledRule
from ...rules.plan import Plan
from ...rules.ruleset import RuleSet
from ...settings import Settings
from .gateway import Gateway

_SENT: Final = ("ip", "user", "method", "path", "host", "region", "header", "cookie", "query")
"""The features, and families of features, that the request of a gateway has."""
_PATHS: Final = 'Count all paths together, or write a rule with match = { path = "..." } for each'
_FIX: Final = 'Set match = { view = "" } and decide the rule with POST /v1/check'


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
    if not gateway.sends(header := settings.region_header):
        raise ConfigError(f"a gateway does not send the header {header!r}. Choose another one", "region_header")
    for rule in rules.rules:
        if not rule.source.matches.is_only_named:
            check_decided_at_once(rule)
            if "user" in rule.source.needs and not has_users:
                log_note(f"the rule {rule.name!r} counts no user. Name the header of the gateway with --user-header")
            _check_sent(f"rule {rule.name!r}", rule.source.parts, gateway, requires_user(rule) and not has_users)
    _check_sent("lists", rules.lists.parts, gateway, "user" in rules.lists.needs and not has_users)


def _check_sent(of: str, parts: tuple[str, ...], gateway: Gateway, lacks_user: bool) -> None:
    if lacks_user:
        raise ConfigError("uses the feature 'user'. Name the header of the gateway with --user-header", of=of)
    for part in parts:
        name = part.removeprefix("email:")
        family, _, header = part_of(name).feature.partition(":")
        if family not in _SENT or (family == "header" and not gateway.sends(header)):
            fix = _PATHS if name == "endpoint" else _FIX
            raise ConfigError(f"uses the feature {part!r}, which a gateway does not send. {fix}", of=of)


def check_no_slots(limits: Iterable[Limit]) -> None:
    """Raise ``ConfigError`` for limits of a client that would need the response."""
    for limit in limits:
        if limit.quota.concurrent:
            message = "the service sees no response, so it has no use for concurrent limits"
            raise ConfigError(f"{message}; got '{limit.quota}'")


def check_decided_at_once(rule: CompiledRule) -> None:
    """Raise ``ConfigError`` for a rule that needs the response, which the service does not see."""
    if Plan([rule]).needs_settlement:
        message = "the service sees no response, so it has no use for concurrent limits, count_when and cost_from"
        raise ConfigError(f"{message}. Use the rule in the middleware of the application", of=f"rule {rule.name!r}")
