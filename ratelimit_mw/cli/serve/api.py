"""The rules of the service, and its JSON API: decide a request, and the operations of an operator."""

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated, Any, Final, NamedTuple, NoReturn

from msgspec import Meta

from ...decision import Limit
from ...errors import ConfigError, StoreError, error_path
from ...http.client_ip import ClientIP
from ...http.headers import HeaderWriter
from ...http.request import parse_pairs
from ...http.routes import check_no_views
from ...keys.features import INVALID
from ...keys.parts import as_counted
from ...limiter.limiter import Limiter
from ...operations import OPERATIONS, AdminOperation, read_features
from ...operations.answer import decision_json
from ...operations.arguments import Arguments, arguments_of, decode, of_texts
from ...quota import checked_cost
from ...rules.plan import Plan
from ...rules.ruleset import RuleSet
from ...runtime.blocking import async_call
from ...settings import Settings
from .gateway import Gateway, ProblemError, check_decided_at_once, check_for_gateway, invalid_headers, path_of_target

Fields = Mapping[str, Any]

_FEATURE: Final = "feature"


class ServedRules:
    """Follows the rules of a limiter. ``ConfigError`` for rules that the service cannot decide.

    Args:
        limiter: The limiter.
        gateway: The gateway that sends requests; None for none.
    """

    client_ip: ClientIP
    writer: HeaderWriter
    invalid_headers: re.Pattern[bytes]
    _ipv6_prefix: int

    def __init__(self, limiter: Limiter, gateway: Gateway | None) -> None:
        self.limiter = limiter
        self._gateway = gateway
        limiter.check_limit = self._check_limit  # before the limiter reads overrides that a command has set
        limiter.reloads.prepare(limiter.rules)
        with limiter.reloads.lock, limiter.reloads.located():
            self.renew(limiter.rules, limiter.settings)()
            limiter.reloads.middlewares.add(self)

    def renew(self, rules: RuleSet, settings: Settings) -> Callable[[], None]:
        """Check rules that were read again. Return the function that puts them into effect."""
        check_no_views(rules.require_complete(), ["endpoint"])
        if self._gateway:
            check_for_gateway(rules, settings, self._gateway)
        client_ip = ClientIP(settings.trusted_proxies, settings.forwarded_header)
        writer = HeaderWriter(settings.headers, settings.reset, settings.retry_jitter)
        invalid = invalid_headers(name[len("header:") :] for name in rules.needs if name.startswith("header:"))

        def put_into_effect() -> None:
            self.client_ip, self.writer, self.invalid_headers = client_ip, writer, invalid
            self._ipv6_prefix = settings.ipv6_prefix

        return put_into_effect

    def _check_limit(self, limit: Limit) -> None:
        """Raise ``ConfigError`` for a limit of a client that needs the response."""
        if limit.quota.concurrent:
            message = "the service sees no response, so it has no use for concurrent limits"
            raise ConfigError(f"{message}; got '{limit.quota}'")
        self.limiter.store.check(limit)

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
            plan = rules.plan_for_rule(rules.named(name).name, rules.lists)
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


def _check_named(needs: Iterable[str], features: Mapping[str, Any], user: str) -> None:
    for name in needs:
        if name not in features:
            message = f"{user} uses the feature {name!r}. Add it, with null for a request that has none"
            raise ConfigError(message, "features")


async def alive(_rules: ServedRules) -> dict[str, Any]:
    """Respond while the service runs."""
    return {"alive": True}


async def ready(rules: ServedRules) -> dict[str, Any]:
    """Respond while the store does."""
    try:
        await rules.limiter.store.aping()
    except StoreError:  # every client may ask, so the reason is not for them
        raise ProblemError(503, "the store is unreachable. The command check --connect shows the reason") from None
    return {"ready": True}


async def check(
    rules: ServedRules,
    features: Annotated[Fields | None, Meta()] = None,
    rule: Annotated[str | None, Meta()] = None,
    cost: Annotated[int | None, Meta()] = None,
    consume: Annotated[bool, Meta()] = True,
) -> dict[str, Any]:
    """Decide one request by its features, and return the verdict with the headers for the client."""
    limiter = rules.limiter
    with error_path("features"):
        counted = rules.as_counted(features or {})
    plan = rules.plan(counted, rule)
    verdict = await limiter.adecide(plan, counted, cost if cost is None else checked_cost(cost), consume)
    if consume and limiter.is_observed:
        limiter.observers.report((verdict,))
    return {
        "allowed": verdict.allowed,
        "banned": verdict.banned,
        "status": verdict.status,
        "retry_after": verdict.retry_after,
        "delay": verdict.delay,
        "headers": dict(rules.writer.headers(verdict)),
        "decisions": [decision_json(decision, limiter.rules) for decision in verdict.decisions],
    }


class ApiRoute(NamedTuple):
    """A path of the API: its method, its arguments, and the function that takes them and responds to a request."""

    method: str
    arguments: Arguments
    respond: Callable[..., Awaitable[dict[str, Any]]]
    needs_token: bool = True

    def parse(self, query: str, body: bytes) -> dict[str, Any]:
        """Return the arguments of a request."""
        is_query = self.method == "GET"
        return decode(self.arguments, of_texts(self.arguments, _parse_query(query)) if is_query else _parse_body(body))


def _route_of(operation: AdminOperation) -> ApiRoute:
    async def respond(rules: ServedRules, **arguments: Any) -> dict[str, Any]:
        return (await operation.perform(async_call, rules.limiter, **arguments)).json  # type: ignore[no-any-return]

    return ApiRoute("POST" if operation.writes else "GET", operation.arguments, respond)


ROUTES: Final[Mapping[str, ApiRoute]] = {
    "/healthz": ApiRoute("GET", {}, alive, False),
    "/readyz": ApiRoute("GET", {}, ready, False),
    "/v1/check": ApiRoute("POST", arguments_of(check), check),
    **{each.path: _route_of(each) for each in OPERATIONS.values() if each.path},
}


def _parse_query(query: str) -> dict[str, Any]:
    """Return the fields of a query: ``features`` from all values of ``feature``, and others with their only value."""
    fields = parse_pairs(query)
    if fields is None:
        raise ConfigError("the query has too many fields")
    texts = fields.pop(_FEATURE, None)
    for name, values in fields.items():
        if len(values) > 1:
            raise ConfigError(f"was sent {len(values)} times", name)
    parsed: dict[str, Any] = {name: values[0] for name, values in fields.items()}
    if texts:
        with error_path(_FEATURE):
            parsed["features"] = read_features(texts)
    return parsed


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
