"""The JSON API of the service: decide a request, and the operations of an operator."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple, NoReturn

from msgspec import Meta

from ...errors import ConfigError, error_path
from ...http.headers import as_text
from ...http.request import parse_pairs
from ...operations import OPERATIONS, AdminOperation, read_features
from ...operations.answer import decision_json
from ...operations.arguments import Arguments, arguments_of, decode, of_texts
from ...quota import checked_cost
from ...stores.blocking import async_call
from .gateway import ProblemError
from .rules import ServedRules

Fields = Mapping[str, Any]

_FEATURE: Final = "feature"


async def alive(_rules: ServedRules) -> dict[str, Any]:
    """Respond while the service runs."""
    return {"alive": True}


async def ready(rules: ServedRules) -> dict[str, Any]:
    """Respond while the store does."""
    if not await rules.readiness.is_ready():
        raise ProblemError(503, "the store is unreachable. The log of the service has the reason")
    return {"ready": True}


async def check(
    rules: ServedRules,
    features: Annotated[Fields | None, Meta()] = None,
    rule: Annotated[str | None, Meta()] = None,
    cost: Annotated[int | None, Meta()] = None,
    consume: Annotated[bool, Meta()] = True,
) -> dict[str, Any]:
    """Decide one request by its features, and return the verdict with the headers for the client."""
    counted, limiter = rules.features(features or {}), rules.limiter
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
        "headers": dict(as_text(rules.writer.headers(verdict))),
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
