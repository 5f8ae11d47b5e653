"""The JSON API of the service: decide a request, show keys, and reset a key."""

from collections.abc import Mapping
from functools import cache
from typing import Any, TypedDict
from urllib.parse import parse_qsl

import msgspec

from ...decision import Decision, Verdict
from ...errors import ConfigError, error_path
from ...http.headers import as_text
from ...quota import checked_cost
from ...rules.declaration import check_names, hints_of
from ...settings.schema import check_type
from ..live import read_features
from .rules import ServedRules


class CheckQuestion(TypedDict, total=False):
    """The body of ``POST /v1/check``."""

    features: Mapping[str, Any]
    rule: str
    cost: int
    consume: bool


class ResetQuestion(TypedDict, total=False):
    """The body of ``POST /v1/reset``."""

    key: str
    rule: str
    features: Mapping[str, Any]


async def check(rules: ServedRules, question: Mapping[str, Any]) -> dict[str, Any]:
    """Decide one request by its features, and return the verdict with the headers for the client."""
    features, cost = rules.features(question.get("features", {})), question.get("cost")
    plan, consume = rules.plan(features, question.get("rule")), question.get("consume", True)
    limiter = rules.limiter
    verdict = await limiter.adecide(plan, features, cost if cost is None else checked_cost(cost), consume)
    if consume and limiter.is_observed:
        limiter.observers.report((verdict,))
    return _verdict(verdict, dict(as_text(rules.writer.headers(verdict))))


def _verdict(verdict: Verdict, headers: dict[str, str]) -> dict[str, Any]:
    return {
        "allowed": verdict.allowed,
        "status": 200 if verdict.allowed else verdict.status,
        "retry_after": verdict.retry_after,
        "delay": verdict.delay,
        "headers": headers,
        "decisions": [_decision(decision) for decision in verdict.decisions if not decision.shadow],
    }


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "rule": decision.rule,
        "quota": str(decision.quota),
        "allowed": decision.allowed,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "reset_after": decision.reset_after,
        "retry_after": decision.retry_after,
    }


async def keys(rules: ServedRules, query: str) -> dict[str, Any]:
    """Show keys of the store, a page at a time: those of a rule, the one of some features, or all."""
    pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=100)
    check_names((name for name, _ in pairs), ("rule", "feature", "rejected", "place"), "parameter")
    given = dict(pairs)
    texts = [value for name, value in pairs if name == "feature"]
    rule = given.get("rule")
    features = rules.features_of_key(rule, read_features(texts)) if texts else None
    page = await rules.limiter.ainspect(rule, features, given.get("place", ""), "rejected" in given)
    return {"keys": [_shown(decision) for decision in page.decisions], "next": page.next}


def _shown(decision: Decision) -> dict[str, Any]:
    return {"client": decision.client, "key": decision.key, **_decision(decision)}


async def reset(rules: ServedRules, question: Mapping[str, Any]) -> dict[str, Any]:
    """Forget all that is counted under one key: ``key`` as shown, or the key of a rule for some features.

    The response shows what was counted. With nothing counted, ``reset`` is false: the features may be misspelt.
    """
    limiter = rules.limiter
    if question.keys() == {"key"}:
        await limiter.areset_key(question["key"])
        return {"reset": True}
    if question.keys() != {"rule", "features"}:
        raise ConfigError('expected either {"key": ...}, or {"rule": ..., "features": {...}}')
    features = rules.features_of_key(question["rule"], question["features"])
    page = await limiter.ainspect(question["rule"], features)
    await limiter.areset(question["rule"], features)
    counted = [_shown(decision) for decision in page.decisions if decision.reset_us]
    return {"reset": bool(counted), "keys": counted}


_hints_of = cache(hints_of)


def parse_question(body: bytes, declaration: type) -> dict[str, Any]:
    """Parse a JSON object. ``ConfigError`` for other text, for unknown fields and for values of other types."""
    try:
        question = msgspec.json.decode(body or b"null")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ConfigError("the body is not JSON") from None
    if not isinstance(question, dict):
        raise ConfigError("expected a JSON object as the body")
    hints = _hints_of(declaration)
    check_names(question, hints, "field")
    question = {name: value for name, value in question.items() if value is not None}
    for name, value in question.items():
        with error_path(name):
            check_type(name, value, hints[name])
    return question
