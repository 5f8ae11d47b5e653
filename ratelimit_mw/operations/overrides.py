"""The operations on overrides: the limits of single clients."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..limiter.limiter import Limiter
from ..runtime.blocking import Call
from .answer import Answer, Cell, Table, client_json, override_json, time_text, words_of
from .arguments import Client, Length, Limits, RuleName, operation
from .clients import ALL_CLIENTS, SPELLING, describe_store, named_client, notes_on_interval


@operation(
    "override set",
    "/v1/override/set",
    "FILE api user=acme 1000/minute --for 7d",
    "FILE api user=acme '9/minute; 99/day'",
    "FILE api user=acme unlimited --for 1h",
    "APP api user=acme 9/minute --for 1d",
    writes=True,
)
async def set_override(
    call: Call, limiter: Limiter, rule: RuleName, features: Client, limits: Limits, *, for_: Length = None
) -> Answer:
    """Replace all limits that RULE has for one client by LIMITS.

    NAME=VALUE are the features of the key of the rule, such as user=acme. LIMITS is one argument, such as 1000/minute,
    "1000/minute; 20000/day", or unlimited. An earlier override of the client is replaced.
    """
    _, features = named_client(limiter, rule, features)
    override = await call(limiter.clients, "override", rule, features, limits, for_)
    notes = notes_on_interval(limiter)
    if "concurrent" in override.limits:
        hint = "there, the client keeps the limits of the rule"
        notes.insert(0, f"`ratelimit-mw serve` cannot decide concurrent limits: {hint}")
    json = override_json(override, limiter.rules)
    return Answer(json, [_override_table(limiter, [json])], notes)


@operation("override list", "/v1/overrides", "FILE", "APP --json")
async def list_overrides(call: Call, limiter: Limiter) -> Answer:
    """Show all overrides.

    Overrides that have ended are not shown.
    """
    overrides = [override_json(each, limiter.rules) for each in await call(limiter.clients, "overrides")]
    notes = [] if overrides else ["there are no overrides"]
    return Answer({"overrides": overrides}, [_override_table(limiter, overrides)], notes)


@operation("override remove", "/v1/override/remove", "FILE api user=acme", "APP login ip=192.0.2.7 --json", writes=True)
async def remove_override(call: Call, limiter: Limiter, rule: RuleName, features: Client) -> Answer:
    """Remove the override of one client for RULE.

    NAME=VALUE are the features of the key of the rule. The exit code is 1 when the client has no override.
    """
    _, features = named_client(limiter, rule, features)
    is_removed = await call(limiter.clients, "remove_override", rule, features)
    json, client = client_json(rule, features, removed=is_removed), " ".join(words_of(features)) or ALL_CLIENTS
    if not is_removed:
        return Answer(json, notes=[f"rule {rule} has no override for {client}. {SPELLING}"], found_wrong=True)
    return Answer(json, notes=[f"override of {client} removed from rule {rule}", *notes_on_interval(limiter)])


@operation("override clear", "", "FILE", "APP", writes=True)
async def clear_overrides(call: Call, limiter: Limiter) -> Answer:
    """Remove all overrides, and all bans from all rules.

    It works even when their record in the store is damaged.
    """
    await call(limiter.clients, "clear_overrides")
    return Answer({"cleared": True}, notes=["all overrides removed", *notes_on_interval(limiter)])


def _override_table(limiter: Limiter, overrides: Iterable[Mapping[str, Any]]) -> Table:
    rows: list[dict[str, Cell]] = [
        {
            "rule": each["rule"] if each["rule"] in limiter.rules.by_name else f"{each['rule']} (unknown)",
            "client": each["client"] or ALL_CLIENTS,
            "limits": each["limits"].split("; "),
            "until": time_text(each["until"]),
        }
        for each in overrides
    ]
    return Table(f"Overrides in {describe_store(limiter)}", rows)
