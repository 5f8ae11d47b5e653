"""The JSON API of the service: decide a request, show clients, and reset or ban one, or change its limits."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn, cast

from ...clock import SECOND
from ...decision import Decision
from ...errors import ConfigError, error_path
from ...http.headers import as_text
from ...http.request import parse_pairs
from ...limiter.inspection import KeyStates
from ...limiter.json_forms import client_json, decision_json, override_json
from ...limiter.times import time_json
from ...limiter.traffic_report import report_json, top_json
from ...quota import checked_cost
from ...rules.declaration import check_names
from ...settings.schema import check_type
from ...traffic import TrafficLog
from ..clients import checked_duration, read_features
from ..recorded import DEFAULT, check_recorded, parse_last
from .access import ProblemError
from .rules import ServedRules

Fields = Mapping[str, Any]
Features = Mapping[str, Any]

_FEATURE: Final = "feature"
# The fields of each request, with their types.
_CHECK: Final = {"features": Features, "rule": str, "cost": int, "consume": bool}
_KEYS: Final = {"rule": str, _FEATURE: Sequence[str], "rejected": str, "cursor": str}
_BANS: Final = {"rule": str, "cursor": str}
_LAST: Final = {"last": str}
_CLIENT: Final = {"rule": str, "features": Features}
_CLIENT_HINTS: Final = {
    "rule": 'Send the name of a rule, such as "login"',
    "features": 'Send the features of the key of the rule, such as {"ip": "192.0.2.7"}',
}
_RESET: Final = {**_CLIENT, "key": str}
_BAN: Final = {**_CLIENT, "for": str}
_OVERRIDE: Final = {**_CLIENT, "limits": str, "for": str}


async def alive(_rules: ServedRules, _fields: Fields) -> dict[str, Any]:
    """Respond while the service runs."""
    return {"alive": True}


async def ready(rules: ServedRules, _fields: Fields) -> dict[str, Any]:
    """Respond while the store does."""
    if not await rules.readiness.is_ready():
        raise ProblemError(503, "the store is unreachable. The log of the service has the reason")
    return {"ready": True}


async def check(rules: ServedRules, fields: Fields) -> dict[str, Any]:
    """Decide one request by its features, and return the verdict with the headers for the client."""
    features, cost = rules.features(fields.get("features", {})), fields.get("cost")
    plan, consume = rules.plan(features, fields.get("rule")), fields.get("consume", True)
    limiter = rules.limiter
    verdict = await limiter.adecide(plan, features, cost if cost is None else checked_cost(cost), consume)
    if consume and limiter.is_observed:
        limiter.observers.report((verdict,))
    return {
        "allowed": verdict.allowed,
        "banned": verdict.banned,
        "status": verdict.status,
        "retry_after": verdict.retry_after,
        "delay": verdict.delay,
        "headers": dict(as_text(rules.writer.headers(verdict))),
        "decisions": _shown(rules, verdict.decisions),
    }


async def keys(rules: ServedRules, fields: Fields) -> dict[str, Any]:
    """Show clients in the store, a page at a time: those of a rule, the one of some features, or all.

    For features without a rule, these are the keys that have exactly these features.
    """
    rule, given, rejected = fields.get("rule"), read_features(fields.get(_FEATURE, ())), _flag(fields)
    if not given:
        return _page(rules, "keys", await rules.limiter.ainspect(rule, None, fields.get("cursor", ""), rejected))
    names = [rule] if rule is not None else rules.with_key_of(given)
    found = [
        await rules.limiter.ainspect(name, rules.features_of_key(name, given), rejected=rejected) for name in names
    ]
    return _page(rules, "keys", KeyStates([decision for states in found for decision in states.decisions], None))


def _flag(fields: Fields) -> bool:
    text: str = fields.get("rejected", "false")
    if text not in ("", "true", "false"):
        raise ConfigError(f"expected true or false; got {text!r}", "rejected")
    return text != "false"


def _page(rules: ServedRules, name: str, states: KeyStates) -> dict[str, Any]:
    return {name: _shown(rules, states.decisions), "cursor": states.cursor}


def _shown(rules: ServedRules, decisions: Iterable[Decision]) -> list[dict[str, Any]]:
    return [decision_json(decision, rules.limiter.rules) for decision in decisions]


async def reset(rules: ServedRules, fields: Fields) -> dict[str, Any]:
    """Forget the counts of a client: by a ``key`` of the list, or by a rule and the features of its key.

    The response shows what was counted. With nothing counted, ``reset`` is false: the features may be misspelt.
    """
    limiter = rules.limiter
    if "key" in fields:
        if len(fields) > 1:
            raise ConfigError("set either key, or rule and features", "key")
        decisions = await limiter.ainspect_key(fields["key"])
        await limiter.areset_key(fields["key"])
    else:
        client = _client(rules, fields)
        decisions = [each for each in (await limiter.ainspect(*client)).decisions if each.reset_us]
        await limiter.areset(*client)
    return {"reset": bool(decisions), "keys": _shown(rules, decisions)}


async def ban(rules: ServedRules, fields: Fields) -> dict[str, Any]:
    """Ban a client from a rule, and show the end of the ban."""
    rule, features = _client(rules, fields)
    until = time_json(await rules.limiter.aban(rule, features, _duration(fields)))
    return client_json(rule, features, until=until)


async def unban(rules: ServedRules, fields: Fields) -> dict[str, Any]:
    """Lift the ban of a client from a rule."""
    rule, features = _client(rules, fields)
    was_banned = await rules.limiter.aunban(rule, features)
    return client_json(rule, features, was_banned=was_banned)


async def bans(rules: ServedRules, fields: Fields) -> dict[str, Any]:
    """Show the clients that are banned now, a page at a time."""
    return _page(rules, "bans", await rules.limiter.abans(fields.get("rule"), fields.get("cursor", "")))


async def report(rules: ServedRules, fields: Fields) -> dict[str, Any]:
    """Show the outcomes of each rule, as the command ``report`` does."""
    return await asyncio.to_thread(report_json, *_recorded(rules, fields), rules.limiter.rules)


async def top(rules: ServedRules, fields: Fields) -> dict[str, Any]:
    """Show the clients that were rejected most, as the command ``top`` does."""
    if (rule := fields.get("rule")) is not None:
        rule = rules.limiter.rules.named(rule).name
    range_in_log = _recorded(rules, fields, needs_clients=True)
    return await asyncio.to_thread(top_json, *range_in_log, rules.limiter.rules, rule)


def _recorded(rules: ServedRules, fields: Fields, needs_clients: bool = False) -> tuple[TrafficLog, float, float]:
    """Return the traffic log of the service, and the start and the end of the range."""
    limiter = rules.limiter
    check_recorded(limiter.settings, needs_clients)
    with error_path("last"):
        last = parse_last(fields.get("last", DEFAULT))
    end = limiter._time() / SECOND
    return cast(TrafficLog, limiter.traffic_log), end - last, end


async def set_override(rules: ServedRules, fields: Fields) -> dict[str, Any]:
    """Change the limits of a client."""
    if "limits" not in fields:
        raise ConfigError('is missing, such as "1000/minute" or "unlimited"', "limits")
    override = await rules.limiter.aset_override(*_client(rules, fields), fields["limits"], _duration(fields))
    return override_json(override, rules.limiter.rules)


async def remove_override(rules: ServedRules, fields: Fields) -> dict[str, Any]:
    """Give a client the limits of the rule again."""
    rule, features = _client(rules, fields)
    is_removed = await rules.limiter.aremove_override(rule, features)
    return client_json(rule, features, removed=is_removed)


async def overrides(rules: ServedRules, _fields: Fields) -> dict[str, Any]:
    """Show the overrides of all clients."""
    every = await rules.limiter.aoverrides()
    return {"overrides": [override_json(each, rules.limiter.rules) for each in every]}


def _duration(fields: Fields) -> str | None:
    with error_path("for"):
        return checked_duration(fields["for"]) if "for" in fields else None


def _client(rules: ServedRules, fields: Fields) -> tuple[str, dict[str, Any]]:
    """Return the rule and the features of its key."""
    for name, hint in _CLIENT_HINTS.items():
        if name not in fields:
            raise ConfigError(f"is missing. {hint}", name)
    return fields["rule"], rules.features_of_key(fields["rule"], fields["features"])


class ApiRoute(NamedTuple):
    """A path of the API, and the fields of a request to it, with their types."""

    method: str
    respond: Callable[[ServedRules, Fields], Awaitable[dict[str, Any]]]
    fields: Mapping[str, Any]
    needs_token: bool = True

    def parse(self, query: str, body: bytes) -> Fields:
        """Return the fields of a request. ``ConfigError`` for unknown ones, and for values of other types."""
        fields = _parse_query(query) if self.method == "GET" else _parse_body(body)
        check_names(fields, self.fields, "field")
        fields = {name: value for name, value in fields.items() if value is not None}
        for name, value in fields.items():
            with error_path(name):
                _check_type(name, value, self.fields[name])
        return fields


ROUTES: Final[Mapping[str, ApiRoute]] = {
    "/healthz": ApiRoute("GET", alive, {}, False),
    "/readyz": ApiRoute("GET", ready, {}, False),
    "/v1/check": ApiRoute("POST", check, _CHECK),
    "/v1/keys": ApiRoute("GET", keys, _KEYS),
    "/v1/reset": ApiRoute("POST", reset, _RESET),
    "/v1/bans": ApiRoute("GET", bans, _BANS),
    "/v1/ban": ApiRoute("POST", ban, _BAN),
    "/v1/unban": ApiRoute("POST", unban, _CLIENT),
    "/v1/report": ApiRoute("GET", report, _LAST),
    "/v1/top": ApiRoute("GET", top, {"rule": str, **_LAST}),
    "/v1/overrides": ApiRoute("GET", overrides, {}),
    "/v1/override/set": ApiRoute("POST", set_override, _OVERRIDE),
    "/v1/override/remove": ApiRoute("POST", remove_override, _CLIENT),
}


def _check_type(name: str, value: Any, hint: Any) -> None:
    try:
        check_type(name, value, hint)
    except ConfigError as error:  # of a settings file, which has tables
        raise ConfigError(error.message.replace("a table", "an object"), error.path) from None


def _parse_query(query: str) -> dict[str, Any]:
    """Return the fields of a query: ``feature`` with all its values, others with their only one."""
    fields = parse_pairs(query)
    if fields is None:
        raise ConfigError("the query has too many fields")
    for name, values in fields.items():
        if len(values) > 1 and name != _FEATURE:
            raise ConfigError(f"was sent {len(values)} times", name)
    return {name: values if name == _FEATURE else values[0] for name, values in fields.items()}


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_decoder: Final = json.JSONDecoder(parse_constant=_reject)
"""Unlike msgspec, it decodes half of a surrogate pair, which the key of a list may have."""


def _parse_body(body: bytes) -> dict[str, Any]:
    try:
        fields = _decoder.decode(body.decode())
    except (ValueError, RecursionError):
        raise ConfigError("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise ConfigError("expected a JSON object as the body")
    return fields
