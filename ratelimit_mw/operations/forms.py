"""The JSON of decisions and overrides, the same in commands, the admin API and the dashboard."""

from typing import Any

from ..decision import Decision, prefix_of, without_hash_tag
from ..keys.features import Features
from ..keys.parts import part_of
from ..rules.compiled import CompiledRule
from ..rules.overrides import ClientOverride
from ..rules.ruleset import RuleSet
from .arguments import word_of, words_of
from .overview import function_name
from .times import time_json


def decision_json(decision: Decision, rules: RuleSet) -> dict[str, Any]:
    """Return a decision with the names of its attributes. ``until`` is the end of a rejection or of a ban."""
    retry = None if decision.allowed else decision.retry_after
    return {
        "rule": decision.rule,
        "client": client_text(decision.key[len(prefix_of(decision.key)) :], decision.rule, rules),
        "quota": function_of(decision, rules) or str(decision.quota),
        "unit": decision.unit,
        "mode": "shadow" if decision.shadow else "enforce",
        "allowed": decision.allowed,
        "banned": decision.banned,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "retry_after": decision.retry_after,
        "until": None if retry is None else time_json(decision.at, retry),
        "reset_after": decision.reset_after,
        "reset_at": time_json(decision.at, decision.reset_after),
        "key": decision.key,
        **({"reason": decision.reason} if decision.reason else {}),
    }


def override_json(override: ClientOverride, rules: RuleSet) -> dict[str, Any]:
    """Return an override. Without an end, ``until`` is None."""
    return {
        "rule": override.rule,
        "client": client_text(override.key, override.rule, rules),
        "limits": override.limits,
        "until": None if override.until is None else time_json(override.until),
        "key": override.key,
    }


def function_of(decision: Decision, rules: RuleSet) -> str:
    """Return the name of the function that returns the limits of a banned client; "" for known limits."""
    rule = rules.by_name.get(decision.rule)
    return function_name(rule.source.function) if rule and decision.source in rule.placeholder else ""


def client_json(rule: str | None, features: Features, **result: object) -> dict[str, Any]:
    """Return the result of a change for one client."""
    return {"rule": rule, "client": " ".join(words_of(features)), **result}


def client_text(client: str, rule: str, rules: RuleSet) -> str:
    """Return the values in a key without its prefix; "" for the key of all clients. The rule may be gone."""
    words = words_of_client(rules.by_name[rule], client) if rule in rules.by_name else None
    return without_hash_tag(client) if words is None else " ".join(words)


def words_of_client(rule: CompiledRule, client: str) -> list[str] | None:
    """Return the values in a key without its prefix as words. A digest stays one. None for a key of other entries."""
    values = rule.key.values_in(client)
    return None if values is None else [f"{word_of(part_of(name))}={value}" for name, value in values.items()]
