"""The operations on single clients of a limiter: reset and bans, and the helpers of all these operations."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from math import inf
from typing import Annotated, Any, Final

from msgspec import Meta

from ..clock import SECOND
from ..decision import Decision
from ..errors import ConfigError, error_path
from ..keys.features import Features
from ..limiter.clients import KeyStates
from ..limiter.limiter import Limiter
from ..rules.compiled import CompiledRule
from ..runtime.blocking import Call, async_call
from ..stores.url import redacted_url
from .answer import Answer, Cell, Table, client_json, decision_json, span_text, time_json, time_text, word_of, words_of
from .arguments import Client, Most, OnlyRule, RuleName, RuleOrAll, operation

ALL_CLIENTS: Final = "all clients"
_BAN_LENGTH: Final = Meta(
    title="DURATION", description="The length, such as 30m or 7d. Default: `for` of the rule, or no end."
)
_MAX_PAGES: Final = 20
"""Pages of up to 10,000 keys each."""
SPELLING: Final = "Check the spelling of the values"


def describe_store(limiter: Limiter) -> str:
    """Return where the clients of a limiter are, in words."""
    return ", ".join(filter(None, [limiter.settings.source, f"store {redacted_url(limiter.store)}"]))


async def read_pages(
    read: Callable[[str], Awaitable[KeyStates]], most: int, pages: float = inf
) -> tuple[list[Decision], bool]:
    """Return decisions, and whether there may be more: no further page is read after ``most`` or ``pages``."""
    found, count = dict[str, Decision](), 0
    cursor: str | None = ""
    while cursor is not None and len(found) <= most and count < pages:
        decisions, cursor = await read(cursor)
        found |= {each.key: each for each in decisions}
        count += 1
    return list(found.values()), cursor is not None or len(found) > most


def pages_of(call: Call) -> float:
    """Return how many pages an operation may read. In a service, it must not take the time of requests for long."""
    return _MAX_PAGES if call is async_call else inf


async def states_of(call: Call, limiter: Limiter, rule: CompiledRule, features: Features) -> list[Decision]:
    """Return the decisions on the keys of a client that have counts, by its own limits where they are known."""
    if missing_in_tables(rule, features):
        return await call(limiter.clients, "inspect_key", _key_of(rule, features))  # type: ignore[no-any-return]
    states = await call(limiter.clients, "inspect", rule.name, features)
    return [decision for decision in states.decisions if decision.reset_us or decision.source.sheds]


def _key_of(rule: CompiledRule, features: Features) -> str:
    """Return one of the keys of a client. ``ConfigError`` for a client without limits."""
    limits = rule.all_limits()
    if not limits:
        raise ConfigError(f"the function of rule {rule.name!r} returns no limits for this client")
    return f"{limits[0].prefix}{rule.key_of(features)}"


def missing_in_tables(rule: CompiledRule, features: Features) -> list[str]:
    """Return the missing features that choose the limits of a rule."""
    return [by for by, _ in rule.source.tables if by and by.value(features) is None]


def secret_hint(limiter: Limiter, rules: Iterable[CompiledRule]) -> str:
    """Return a hint on the features whose digests are in the keys of some rules; "" without any."""
    parts = [part for rule in rules for parts in rule.source.entries for part in parts]
    digested = dict.fromkeys(word_of(part) for part in parts if limiter.settings.secret.covers(part.feature))
    every = " and ".join(digested)
    return f"The keys have digests of {every}. The secret must be that of the application" if digested else ""


def next_request(key: Mapping[str, Any]) -> str:
    """Return whether the next request of a key is allowed, in words."""
    if key["allowed"]:
        return "allowed"
    verb = "would be rejected" if key["mode"] == "shadow" else "banned" if key["banned"] else "rejected"
    if key["retry_after"] is None:
        return f"{verb}: its cost never fits"
    return f"{verb} for {span_text(key['retry_after'])}"


def counted(limiter: Limiter, features: Features) -> Features:
    """Return features as requests have them, such as an IPv6 address as its network."""
    with error_path("features"):
        return limiter.reloads.as_counted(features)


def named_client(limiter: Limiter, name: str, given: Features) -> tuple[CompiledRule, Features]:
    """Return the rule and the features of one client.

    ``ConfigError`` for a missing feature, and for one without use.
    """
    rule, features = limiter.rules.named(name), counted(limiter, given)
    with error_path("features"):
        rule.client_key(features, is_exact=True)
    return rule, features


@operation(
    "reset",
    "/v1/reset",
    "FILE login ip=192.0.2.7",
    "FILE api user=alice --json",
    "APP login ip=192.0.2.7",
    writes=True,
)
async def reset(call: Call, limiter: Limiter, rule: RuleName, features: Client) -> Answer:
    """Reset the counts of one client for RULE, and lift its ban.

    NAME=VALUE are the features of the key of the rule, such as ip=192.0.2.7. The command shows what it has reset. The
    exit code is 1 when nothing was counted for the client: then look for a mistake in a value.
    """
    named, features = named_client(limiter, rule, features)
    known, key = await states_of(call, limiter, named, features), _key_of(named, features)
    every = {each.key: each for each in (*await call(limiter.clients, "inspect_key", key), *known)}
    await call(limiter.clients, "reset_key", key)
    keys = [decision_json(each, limiter.rules) for each in every.values()]
    json = {"reset": bool(keys), "keys": keys}
    if not keys:
        client, hint = " ".join(words_of(features)) or ALL_CLIENTS, secret_hint(limiter, [named])
        note = f"rule {named.name} has no counts of {client}. {SPELLING}. {hint}"
        return Answer(json, notes=[note.removesuffix(". ")], found_wrong=True)
    rows = list(map(_reset_row, keys))
    return Answer(json, [Table(f"Reset in {describe_store(limiter)}", rows)], _notes_on_workers(limiter, named))


def _reset_row(key: Mapping[str, Any]) -> dict[str, Cell]:
    return {
        "rule": key["rule"],
        "client": key["client"] or ALL_CLIENTS,
        "limit": key["quota"],
        "consumed": "" if key["banned"] else f"{key['limit'] - key['remaining']:,} of {key['limit']:,}",
        "before": next_request(key),
    }


def _notes_on_workers(limiter: Limiter, rule: CompiledRule) -> list[str]:
    """Return what workers still hold of a key that an operation has changed."""
    notes, kept = [], limiter.settings.rejection_cache
    if kept:
        span = span_text(kept / SECOND)
        notes.append(f"your workers may repeat their last rejection for up to {span} (rejection_cache)")
    if (consistency := rule.source.consistency) != "exact":
        notes.append(f'rule {rule.name} has consistency = "{consistency}": each worker still has counts of its own')
    return notes


@operation(
    "ban",
    "/v1/ban",
    "FILE login ip=192.0.2.7",
    "FILE ip=192.0.2.7 --for 1h",
    "FILE api user=alice --for 7d --json",
    "APP login ip=192.0.2.7 --for 1h",
    writes=True,
)
async def ban(
    call: Call, limiter: Limiter, rule: RuleOrAll, features: Client, *, for_: Annotated[str | None, _BAN_LENGTH] = None
) -> Answer:
    """Ban one client from RULE now, or from all rules. The ban replaces an active one.

    NAME=VALUE are the features of the key, such as ip=192.0.2.7. The rule must have the option ban. Without RULE, all
    requests of the client are rejected with 403 until the end of the ban.
    """
    features = _banned_client(limiter, rule, features)
    until = await call(limiter.clients, "ban", rule, features, for_)
    end = None if until == inf else time_json(until)
    text = f"{_of_ban(rule, features, 'is banned')} {f'until {time_text(end)}' if end else 'without an end'}"
    return Answer(client_json(rule, features, until=end), [text], [] if rule else notes_on_interval(limiter))


def _banned_client(limiter: Limiter, rule: str | None, features: Features) -> Features:
    """Return the features of a client as a ban of a rule counts them; those of a ban from all rules as they are."""
    return features if rule is None else named_client(limiter, rule, features)[1]


def _of_ban(rule: str | None, features: Features, words: str) -> str:
    return f"{' '.join(words_of(features))} {words} from {f'rule {rule}' if rule else 'all rules'}"


@operation(
    "unban", "/v1/unban", "FILE login ip=192.0.2.7", "FILE ip=192.0.2.7", "APP login ip=192.0.2.7 --json", writes=True
)
async def unban(call: Call, limiter: Limiter, rule: RuleOrAll, features: Client) -> Answer:
    """Lift the ban of one client from RULE, or from all rules. Its counts stay: see reset.

    The rejections of the client and its earlier bans are forgotten. The exit code is 1 when the client was not banned.
    """
    features = _banned_client(limiter, rule, features)
    was_banned = await call(limiter.clients, "unban", rule, features)
    json = client_json(rule, features, was_banned=was_banned)
    if not was_banned:
        return Answer(json, notes=[f"{_of_ban(rule, features, 'was not banned')}. {SPELLING}"], found_wrong=True)
    notes = _notes_on_workers(limiter, limiter.rules.named(rule)) if rule else notes_on_interval(limiter)
    return Answer(json, [_of_ban(rule, features, "is no longer banned")], notes)


@operation("bans", "/v1/bans", "FILE", "FILE --rule login --json", "APP")
async def bans(
    call: Call, limiter: Limiter, *, rule: OnlyRule = None, limit: Most = 100, pages: float | None = None
) -> Answer:
    """List the clients that are banned now, with the end of each ban."""
    most = pages or pages_of(call)
    found, has_more = await read_pages(lambda cursor: call(limiter.clients, "bans", rule, cursor), limit, most)
    shown = sorted(found, key=lambda each: (each.rule, each.client))[:limit]
    notes = [] if shown else ["no client is banned now"]
    notes += [f"there are more bans than --limit {limit}. Raise it, or use --rule"] * has_more
    json: dict[str, Any] = {"bans": [decision_json(each, limiter.rules) for each in shown], "has_more": has_more}
    return Answer(json, [Table(f"Banned in {describe_store(limiter)}", list(map(_ban_row, json["bans"])))], notes)


def _ban_row(ban: Mapping[str, Any]) -> dict[str, Cell]:
    left = ban["retry_after"]
    return {
        "rule": ban["rule"] or "(all rules)",
        "client": ban["client"] or ALL_CLIENTS,
        "until": time_text(ban["until"]),
        "left": "" if left is None else span_text(left),
        "mode": ban["mode"],
    }


def notes_on_interval(limiter: Limiter) -> list[str]:
    """Return when workers apply a change of the record of overrides and bans."""
    interval = limiter.settings.reload_interval
    if not interval:
        return ["reload_interval = 0: your workers apply the change when they start"]
    return [f"your workers apply the change within {span_text(interval / SECOND)} (reload_interval)"]
