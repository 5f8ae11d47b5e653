"""The JSON API of the service: decide a request, show keys, and unlock, ban or favour a client."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from ...decision import Decision, Verdict
from ...errors import ConfigError, error_path
from ...http.headers import as_text
from ...http.request import parse_pairs
from ...limiter.inspection import KeyStates
from ...quota import checked_cost
from ...rules.declaration import check_names
from ...rules.overrides import ClientOverride
from ...settings.schema import check_type
from ..live import read_features
from ..recorded import DEFAULT, parse_last, report_of
from .rules import ServedRules

Question = Mapping[str, Any]
Features = Mapping[str, Any]

_FEATURE: Final = "feature"
# The fields of each question, with their types.
_CHECK: Final = {"features": Features, "rule": str, "cost": int, "consume": bool}
_KEYS: Final = {"rule": str, _FEATURE: Sequence[str], "rejected": str, "place": str}
_BANS: Final = {"rule": str, "place": str}
_LAST: Final = {"last": str}
_CLIENT: Final = {"rule": str, "features": Features}
_RESET: Final = {**_CLIENT, "key": str}
_BAN: Final = {**_CLIENT, "for": str}
_OVERRIDE: Final = {**_CLIENT, "limits": str, "for": str}


async def alive(_rules: ServedRules, _question: Question) -> dict[str, Any]:
    """Respond while the service runs."""
    return {"alive": True}


async def ready(rules: ServedRules, _question: Question) -> dict[str, Any]:
    """Respond while the store does. ``StoreError`` otherwise."""
    await rules.limiter.store.aping()
    return {"ready": True}


async def check(rules: ServedRules, question: Question) -> dict[str, Any]:
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


async def keys(rules: ServedRules, question: Question) -> dict[str, Any]:
    """Show keys of the store, a page at a time: those of a rule, the one of some features, or all."""
    rule, texts = question.get("rule"), question.get(_FEATURE)
    features = rules.features_of_key(rule, read_features(texts)) if texts else None
    return _page(await rules.limiter.ainspect(rule, features, question.get("place", ""), "rejected" in question))


def _page(states: KeyStates) -> dict[str, Any]:
    return {"keys": [_shown(decision) for decision in states.decisions], "next": states.next}


def _shown(decision: Decision) -> dict[str, Any]:
    return {"client": decision.client, "key": decision.key, **_decision(decision)}


async def reset(rules: ServedRules, question: Question) -> dict[str, Any]:
    """Forget all that is counted under one key: ``key`` as shown, or the key of a rule for some features.

    The response shows what was counted. With nothing counted, ``reset`` is false: the features may be misspelt.
    """
    if question.keys() == {"key"}:
        await rules.limiter.areset_key(question["key"])
        return {"reset": True}
    client = _client(rules, question)
    page = await rules.limiter.ainspect(*client)
    await rules.limiter.areset(*client)
    counted = [_shown(decision) for decision in page.decisions if decision.reset_us]
    return {"reset": bool(counted), "keys": counted}


async def ban(rules: ServedRules, question: Question) -> dict[str, Any]:
    """Ban a client from a rule, and show the end of the ban in seconds since 1970."""
    return {"until": await rules.limiter.aban(*_client(rules, question), question.get("for"))}


async def unban(rules: ServedRules, question: Question) -> dict[str, Any]:
    """Lift the ban of a client from a rule."""
    return {"unbanned": await rules.limiter.aunban(*_client(rules, question))}


async def bans(rules: ServedRules, question: Question) -> dict[str, Any]:
    """Show the clients that are banned now, a page at a time."""
    return _page(await rules.limiter.abans(question.get("rule"), question.get("place", "")))


async def report(rules: ServedRules, question: Question) -> dict[str, Any]:
    """Show the outcomes of each rule, as the command ``report`` does."""
    return report_of(rules.limiter.rules, await rules.limiter.aoutcomes(_last(question)))


async def top(rules: ServedRules, question: Question) -> dict[str, Any]:
    """Show the clients that were rejected most, as the command ``top`` does."""
    clients = await rules.limiter.atop_clients(question.get("rule"), _last(question))
    return {"clients": [client._asdict() for client in clients]}


def _last(question: Question) -> float:
    with error_path("last"):
        return parse_last(question.get("last", DEFAULT))


async def set_override(rules: ServedRules, question: Question) -> dict[str, Any]:
    """Give a client other limits."""
    if "limits" not in question:
        raise ConfigError('is missing, such as "1000/minute" or "unlimited"', "limits")
    client = _client(rules, question)
    return _override(await rules.limiter.aset_override(*client, question["limits"], question.get("for")))


async def remove_override(rules: ServedRules, question: Question) -> dict[str, Any]:
    """Give a client the limits of the rule again."""
    return {"removed": await rules.limiter.aremove_override(*_client(rules, question))}


async def overrides(rules: ServedRules, _question: Question) -> dict[str, Any]:
    """Show the overrides of all clients."""
    return {"overrides": [_override(each) for each in await rules.limiter.aoverrides()]}


def _override(override: ClientOverride) -> dict[str, Any]:
    return {"rule": override.rule, "client": override.client, "limits": override.limits, "until": override.until}


def _client(rules: ServedRules, question: Question) -> tuple[str, dict[str, Any]]:
    """Return the rule and the features of its key."""
    for name in ("rule", "features"):
        if name not in question:
            raise ConfigError("is missing", name)
    return question["rule"], rules.features_of_key(question["rule"], question["features"])


class ApiRoute(NamedTuple):
    """A path of the API, and the fields of a question to it, with their types."""

    method: str
    answer: Callable[[ServedRules, Question], Awaitable[dict[str, Any]]]
    fields: Mapping[str, Any]
    may_ask: Literal["any", "trusted", "admin"]

    def parse(self, query: str, body: bytes) -> Question:
        """Return the question. ``ConfigError`` for unknown fields and for values of other types."""
        question = _parse_query(query) if self.method == "GET" else _parse_body(body)
        check_names(question, self.fields, "field")
        question = {name: value for name, value in question.items() if value is not None}
        for name, value in question.items():
            with error_path(name):
                check_type(name, value, self.fields[name])
        return question


ROUTES: Final[Mapping[str, ApiRoute]] = {
    "/healthz": ApiRoute("GET", alive, {}, "any"),
    "/readyz": ApiRoute("GET", ready, {}, "any"),
    "/v1/check": ApiRoute("POST", check, _CHECK, "trusted"),
    "/v1/keys": ApiRoute("GET", keys, _KEYS, "admin"),
    "/v1/reset": ApiRoute("POST", reset, _RESET, "admin"),
    "/v1/bans": ApiRoute("GET", bans, _BANS, "admin"),
    "/v1/ban": ApiRoute("POST", ban, _BAN, "admin"),
    "/v1/unban": ApiRoute("POST", unban, _CLIENT, "admin"),
    "/v1/report": ApiRoute("GET", report, _LAST, "admin"),
    "/v1/top": ApiRoute("GET", top, {"rule": str, **_LAST}, "admin"),
    "/v1/overrides": ApiRoute("GET", overrides, {}, "admin"),
    "/v1/override/set": ApiRoute("POST", set_override, _OVERRIDE, "admin"),
    "/v1/override/remove": ApiRoute("POST", remove_override, _CLIENT, "admin"),
}


def _parse_query(query: str) -> dict[str, Any]:
    """Return the fields of a query: ``feature`` with all its values, others with their only one."""
    fields = parse_pairs(query)
    if fields is None:
        raise ConfigError("the query has too many fields")
    for name, values in fields.items():
        if len(values) > 1 and name != _FEATURE:
            raise ConfigError(f"was sent {len(values)} times", name)
    return {name: values if name == _FEATURE else values[0] for name, values in fields.items()}


def _parse_body(body: bytes) -> dict[str, Any]:
    try:
        question = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ConfigError("the body is not JSON") from None
    if not isinstance(question, dict):
        raise ConfigError("expected a JSON object as the body")
    return question
