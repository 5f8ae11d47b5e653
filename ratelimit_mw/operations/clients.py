"""The operations on single clients of a limiter: their keys, counts, bans and overrides."""

from collections.abc import Collection, Iterable, Iterator
from math import inf
from typing import Any, Final

from ..clock import SECOND
from ..decision import Decision, client_of, prefix_of, rule_of
from ..errors import ConfigError, StoreError, error_path
from ..keys.features import Features
from ..keys.parts import part_of
from ..limiter.limiter import Limiter
from ..rules.client_key import client_key, features_of, missing_in_key, similar_names, words_of_entries
from ..rules.compiled import CompiledRule
from ..rules.overrides import ClientOverride
from ..rules.ruleset import RuleSet
from ..stores.blocking import Call
from ..stores.url import redacted_url
from .answer import Answer, Cell, Table
from .arguments import (
    BanArguments,
    BansArguments,
    ClientArguments,
    InspectArguments,
    NoArguments,
    OverrideArguments,
    OverridesArguments,
    ResetArguments,
    UnbanArguments,
    missing,
    read_features,
    word_of,
    words_of,
)
from .declare import operation
from .forms import client_json, client_text, decision_json, function_of, override_json, words_of_client
from .times import span_text, time_json, time_text

ALL_CLIENTS: Final = "all clients"
_MOST_NAMES: Final = 10
_NO_RIGHT: Final = "no permissions to run the 'scan' command"
"""A part of the reply of Redis to a script whose user lacks a right."""
_SPELLING: Final = "Check the spelling of the values"


@operation(
    "inspect",
    "/v1/keys",
    "FILE --feature ip=192.0.2.7",
    "FILE --rejected",
    "FILE --rule login --prefix ip=192.0.2.",
    "FILE --rule login --limit 100000 --json",
    "APP --feature user=alice",
    "APP --rejected --json",
)
async def inspect(call: Call, limiter: Limiter, arguments: InspectArguments) -> Answer:
    """Show the clients in the store of your application, and how much of each limit remains.

    The command shows all clients that have counts, or the one that you name. It consumes nothing. To reset a client,
    pass its rule and its values to `reset`. The exit code is 1 when no client matches.

    If a function returns the limits of a rule, name all features of its key to see a client. If the limits of a rule
    depend on a feature such as plan, name that feature, too. Otherwise the lowest limits decide.
    """
    search = _KeySearch(limiter, arguments)
    await call(limiter, "start")
    found, cursor = await search.find(call)
    limit = arguments.limit or len(found)
    has_more = cursor is not None or len(found) > limit
    decisions = sorted(found, key=_order)[:limit] if arguments.limit else found
    notes = list(search.notes())
    if arguments.limit and has_more:
        notes.append(f"there are more than {limit:,} keys. Raise --limit, or use --rule, --feature or --prefix")
    if not decisions:
        state = "is rejected" if arguments.rejected else "matches"
        hint = secret_hint(limiter, search.rules) if arguments.features else ""
        notes.append(f"no {'other ' * bool(search.functions)}client {state} now. {hint}".removesuffix(". "))
    return _page(limiter, "keys", decisions, cursor, has_more if arguments.limit else None, notes, not decisions)


def _page(
    limiter: Limiter,
    name: str,
    decisions: list[Decision],
    cursor: str | None,
    has_more: bool | None,
    notes: list[str],
    found_wrong: bool = False,
) -> Answer:
    """Return decisions with the cursor of the next page, or with ``has_more``."""
    rules, row = limiter.rules, _key_row if name == "keys" else _ban_row
    shown = [{**decision_json(each, rules), "rule": each.rule or None} for each in decisions]  # None: all rules
    json = {name: shown, **({"cursor": cursor} if has_more is None else {"has_more": has_more})}
    title = _place(limiter) if name == "keys" else f"Banned in {_place(limiter)}"
    return Answer(json, [Table(title, [row(each, rules) for each in decisions])], notes, found_wrong)


def _place(limiter: Limiter) -> str:
    return ", ".join(filter(None, [limiter.settings.source, f"store {redacted_url(limiter.store)}"]))


class _KeySearch:
    """The keys that ``inspect`` shows. A rule whose key has all its features needs one call, on every store.

    The keys of other rules are listed, and those with the values of the features are decided.
    """

    def __init__(self, limiter: Limiter, arguments: InspectArguments) -> None:
        self._limiter, self._arguments = limiter, arguments
        every = limiter.rules.rules
        self.rules = every if arguments.rule is None else [limiter.rules.named(arguments.rule)]
        self._features = features = _counted(limiter, arguments.features)
        self._check_features()
        missing = {rule: missing_in_key(rule, features) for rule in self.rules}
        self._whole = [
            rule
            for rule in self.rules
            if not missing[rule] and (features or not (rule.source.entries or arguments.prefix))
        ]
        for rule in self._whole:
            client_key(rule, features)  # raises for an invalid value
        others = [rule for rule in self.rules if rule not in self._whole]
        self._skipped = [rule for rule in others if features and len(missing[rule]) == len(rule.source.entries)]
        listed = [rule for rule in others if rule not in self._skipped]
        self.functions = [rule for rule in listed if rule.lookups]
        """The rules whose keys are not listed, because a function returns the limits of a client that you name."""
        self._listed = {rule.name: rule for rule in listed if not rule.lookups}
        self._others: dict[str, None] = {}
        self._problem = ""

    def _check_features(self) -> None:
        prefix = read_features(filter(None, [self._arguments.prefix]))
        for given in (self._arguments.features, prefix):
            check_used(self.rules, given)
        for name in filter(self._limiter.settings.secret.covers, prefix):
            raise ConfigError(f"the keys have digests of {name}. Name the whole value as a feature", "prefix")

    async def find(self, call: Call) -> tuple[list[Decision], str | None]:
        """Return the decisions on the next request of each key that has counts, and the cursor of the next page.

        With a limit, pages are read until there are more decisions.
        """
        arguments, found = self._arguments, list[Decision]()
        for rule in () if arguments.cursor else self._whole:
            states = await _states_of(call, self._limiter, rule, self._features)
            found += [each for each in states if self._has_prefix(rule, each.key)]
        found = [each for each in found if not (arguments.rejected and each.allowed)]
        cursor = arguments.cursor if self._listed else None
        while cursor is not None and (not arguments.limit or len(found) <= arguments.limit):
            decisions, cursor = await self._list(call, cursor)
            found += decisions
            if not arguments.limit:
                break
        return found, cursor

    async def _list(self, call: Call, cursor: str) -> tuple[list[Decision], str | None]:
        rule, rejected = self._arguments.rule, self._arguments.rejected
        try:
            return await call(  # type: ignore[no-any-return]
                self._limiter.clients, "inspect", rule, None, cursor, rejected, self._is_wanted
            )
        except (StoreError, ConfigError) as error:
            hint = ". To list keys, the user of the store needs the right +scan" * (_NO_RIGHT in str(error))
            if not (self._whole and self._features):
                raise type(error)(f"{error}{hint}") from error
            self._problem = f"the keys of {', '.join(self._listed)} could not be listed: {error}{hint}"
            return [], None

    def _is_wanted(self, key: str) -> bool:
        name = rule_of(key)
        if (rule := self._listed.get(name)) is None:
            if name and name not in self._limiter.rules.by_name and len(self._others) < _MOST_NAMES:
                self._others[name] = None
            return False
        has_values = not self._features or rule.key.has_values(
            key[len(prefix_of(key)) :], rule.captures.add(self._features)
        )
        return has_values and self._has_prefix(rule, key)

    def _has_prefix(self, rule: CompiledRule, key: str) -> bool:
        """Return whether one of the values in a key begins with the prefix, in any case."""
        prefix = self._arguments.prefix.casefold()
        return not prefix or any(
            word.casefold().startswith(prefix) for word in words_of_client(rule, key[len(prefix_of(key)) :]) or ()
        )

    def _notes_on_adaptive_limits(self) -> Iterator[str]:
        here = self._limiter.gates.levels()
        if unknown := [rule.name for rule in self.rules if rule.source.adapts and rule.name not in here]:
            own = "each process of your application has its own, in its metrics and its dashboard"
            yield f"the current adaptive limits of {', '.join(unknown)} are not known here: {own}"

    def notes(self) -> Iterator[str]:
        """Yield what the decisions do not show."""
        if not self._limiter.settings.enabled:
            yield "enabled = false: no request is limited"
        allows = self._limiter.rules.lists.allows(self._features) if self._features else None
        if allows is not None:
            effect = "never limited" if allows else "rejected with 403. A reset does not change this"
            bans, place = self._limiter.rules.lists.bans, f"on the {'allow' if allows else 'deny'} list"
            if not allows and bans is not None and bans.find(self._features):
                place = "banned from all rules"
            yield f"this client is {place}, so its requests are {effect}"
        if self._problem:
            yield self._problem
        for rules, reason in (
            (self._skipped, "have keys of other features, which you can name"),
            (self.functions, "have limits from a function, so their keys are not listed. Name all features"),
        ):
            if rules:
                needs = (f"{rule.name} ({words_of_entries(missing_in_key(rule, self._features))})" for rule in rules)
                yield f"some rules {reason}: {', '.join(needs)}"
        for rule in self.rules:
            if by := missing_in_tables(rule, self._features):
                yield f"rule {rule.name} has limits by {', '.join(by)}. The lowest decide, unless you name it"
        yield from self._notes_on_adaptive_limits()
        if self._others:
            yield f"other rules, such as those of decorators, have clients, too: {', '.join(self._others)}"


def check_used(rules: Collection[CompiledRule], features: Iterable[str], others: Collection[str] = ()) -> None:
    """Raise ``ConfigError`` for features that no rule uses, such as one with a typo, and that are not ``others``."""
    used = {name for rule in rules for name in features_of(rule)}
    if unused := [name for name in features if name not in used and name not in others]:
        similar = similar_names(unused, used.union(others))
        known = ", ".join(sorted(used)) or "no feature"
        raise ConfigError(f"no rule uses {' and '.join(unused)}.{similar} The rules use {known}")


async def _states_of(call: Call, limiter: Limiter, rule: CompiledRule, features: Features) -> list[Decision]:
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
    return [by for by, _ in rule.source.tables if by and part_of(by).value(features) is None]


def secret_hint(limiter: Limiter, rules: Iterable[CompiledRule]) -> str:
    """Return a hint on the features whose digests are in the keys of some rules; "" without any."""
    parts = [part_of(name) for rule in rules for names in rule.source.entries for name in names]
    digested = dict.fromkeys(word_of(part) for part in parts if limiter.settings.secret.covers(part.feature))
    every = " and ".join(digested)
    return f"The keys have digests of {every}. The secret must be that of the application" if digested else ""


def _order(decision: Decision) -> tuple[object, ...]:
    """Put rejected clients first, and the limits of one client together."""
    ends = decision.allowed or decision.shadow, decision.allowed
    return *ends, decision.rule, decision.client, decision.quota.period_us


def _key_row(decision: Decision, rules: RuleSet) -> dict[str, Cell]:
    reason = decision.reason
    return {
        "rule": decision.rule,
        "client": _client_of(decision, rules),
        "limit": function_of(decision, rules) or decision.source.text + (f" ({reason})" if reason else ""),
        "remaining": f"{decision.remaining:,} of {decision.limit:,}",
        "next request": next_request(decision),
        "full again": span_text(decision.reset_after),
    }


def _client_of(decision: Decision, rules: RuleSet) -> str:
    return client_text(decision.key[len(prefix_of(decision.key)) :], decision.rule, rules) or ALL_CLIENTS


def next_request(decision: Decision) -> str:
    """Return whether the next request of a key is allowed, in words."""
    if decision.allowed:
        return "allowed"
    verb = "would be rejected" if decision.shadow else "banned" if decision.banned else "rejected"
    if decision.retry_after is None:
        return f"{verb}: its cost never fits"
    return f"{verb} until {time_text(decision.at, decision.retry_after)} ({span_text(decision.retry_after)})"


def _counted(limiter: Limiter, features: Features) -> Features:
    """Return features as requests have them, such as an IPv6 address as its network."""
    with error_path("features"):
        return limiter.reloads.as_counted(features)


async def _client(call: Call, limiter: Limiter, arguments: Any) -> tuple[CompiledRule, Features]:
    """Return the rule and the features of one client, and connect to the store.

    ``ConfigError`` for a missing feature, and for one without use.
    """
    rule, features = limiter.rules.named(arguments.rule), _counted(limiter, arguments.features)
    with error_path("features"):
        client_key(rule, features, is_exact=True)
    await call(limiter, "start")
    return rule, features


@operation(
    "reset",
    "/v1/reset",
    "FILE login ip=192.0.2.7",
    "FILE api user=alice --json",
    "FILE --key '1|api|sliding-window|1m|{ip=::1}'",
    "APP login ip=192.0.2.7",
    writes=True,
)
async def reset(call: Call, limiter: Limiter, arguments: ResetArguments) -> Answer:
    """Reset the counts of one client under all limits of RULE, and lift its ban.

    NAME=VALUE are the features of the key of the rule, such as ip=192.0.2.7. The command shows what it has reset. The
    exit code is 1 when nothing was counted for the client: then look for a mistake in a value.
    """
    known: list[Decision] = []
    if arguments.key is not None:
        if arguments.rule is not None or arguments.features:
            raise ConfigError("set either key, or rule and features", "key")
        key = arguments.key
    else:
        for name in ("rule", "features"):
            if getattr(arguments, name) is None:
                raise missing(name)
        rule, features = await _client(call, limiter, arguments)
        known = await _states_of(call, limiter, rule, features)
        key = _key_of(rule, features)
    every = {each.key: each for each in (*await call(limiter.clients, "inspect_key", key), *known)}
    await call(limiter.clients, "reset_key", key)
    rule, decisions = limiter.rules.named(rule_of(key)), list(every.values())
    json = {"reset": bool(decisions), "keys": [decision_json(each, limiter.rules) for each in decisions]}
    if not decisions:
        client = " ".join(words_of(arguments.features or {})) or client_of(key) or ALL_CLIENTS
        hint = secret_hint(limiter, [rule])
        note = f"rule {rule.name} has no counts of {client}. {_SPELLING}. {hint}"
        return Answer(json, notes=[note.removesuffix(". ")], found_wrong=True)
    rows = [_reset_row(each, limiter.rules) for each in decisions]
    return Answer(json, [Table(f"Reset in {_place(limiter)}", rows)], _notes_on_workers(limiter, rule))


def _reset_row(decision: Decision, rules: RuleSet) -> dict[str, Cell]:
    return {
        "rule": decision.rule,
        "client": _client_of(decision, rules),
        "limit": decision.source.text,
        "consumed": "" if decision.banned else f"{decision.limit - decision.remaining:,} of {decision.limit:,}",
        "before": next_request(decision),
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
async def ban(call: Call, limiter: Limiter, arguments: BanArguments) -> Answer:
    """Ban one client from RULE now, or from all rules. The ban replaces an active one.

    NAME=VALUE are the features of the key, such as ip=192.0.2.7. The rule must have the option ban. Without RULE, all
    requests of the client are rejected with 403 until the end of the ban.
    """
    name, features = await _banned_client(call, limiter, arguments)
    until = await call(limiter.clients, "ban", name, features, arguments.for_)
    end = None if until == inf else time_json(until)
    text = f"{_of_ban(name, features, 'is banned')} {f'until {time_text(until)}' if end else 'without an end'}"
    return Answer(client_json(name, features, until=end), [text], [] if name else _notes_on_interval(limiter))


async def _banned_client(call: Call, limiter: Limiter, arguments: UnbanArguments) -> tuple[str | None, Features]:
    """Return the rule of a ban, None for all rules, and the features of its client."""
    if arguments.rule is None:
        await call(limiter, "start")
        return None, arguments.features
    rule, features = await _client(call, limiter, arguments)
    return rule.name, features


def _of_ban(rule: str | None, features: Features, words: str) -> str:
    return f"{' '.join(words_of(features))} {words} from {f'rule {rule}' if rule else 'all rules'}"


@operation(
    "unban", "/v1/unban", "FILE login ip=192.0.2.7", "FILE ip=192.0.2.7", "APP login ip=192.0.2.7 --json", writes=True
)
async def unban(call: Call, limiter: Limiter, arguments: UnbanArguments) -> Answer:
    """Lift the ban of one client from RULE, or its ban from all rules. Its counts stay: see reset.

    The rejections of the client and its earlier bans are forgotten. The exit code is 1 when the client was not banned.
    """
    name, features = await _banned_client(call, limiter, arguments)
    was_banned = await call(limiter.clients, "unban", name, features)
    json = client_json(name, features, was_banned=was_banned)
    if not was_banned:
        return Answer(json, notes=[f"{_of_ban(name, features, 'was not banned')}. {_SPELLING}"], found_wrong=True)
    notes = _notes_on_workers(limiter, limiter.rules.named(name)) if name else _notes_on_interval(limiter)
    return Answer(json, [_of_ban(name, features, "is no longer banned")], notes)


@operation("bans", "/v1/bans", "FILE", "FILE --rule login --json", "APP")
async def bans(call: Call, limiter: Limiter, arguments: BansArguments) -> Answer:
    """List the clients that are banned now, with the end of each ban."""
    rule = None if arguments.rule is None else limiter.rules.named(arguments.rule).name
    await call(limiter, "start")
    found, cursor = await call(limiter.clients, "bans", rule, arguments.cursor)
    while cursor is not None and arguments.limit and len(found) <= arguments.limit:
        decisions, cursor = await call(limiter.clients, "bans", rule, cursor)
        found += decisions
    limit = arguments.limit or len(found)
    has_more = cursor is not None or len(found) > limit
    shown = sorted(found, key=lambda each: (each.rule, each.client))[:limit] if arguments.limit else found
    notes = [] if shown else ["no client is banned now"]
    if arguments.limit and has_more:
        notes.append(f"there are more bans than --limit {limit}. Raise it, or use --rule")
    return _page(limiter, "bans", shown, cursor, has_more if arguments.limit else None, notes)


def _ban_row(decision: Decision, rules: RuleSet) -> dict[str, Cell]:
    left = decision.retry_after
    return {
        "rule": decision.rule or "(all rules)",
        "client": _client_of(decision, rules),
        "until": "no end" if left is None else time_text(decision.at, left),
        "left": "" if left is None else span_text(left),
        "mode": "shadow" if decision.shadow else "enforce",
    }


@operation(
    "override set",
    "/v1/override/set",
    "FILE api user=acme 1000/minute --for 7d",
    "FILE api user=acme '9/minute; 99/day'",
    "FILE api user=acme unlimited --for 1h",
    "APP api user=acme 9/minute --for 1d",
    writes=True,
)
async def set_override(call: Call, limiter: Limiter, arguments: OverrideArguments) -> Answer:
    """Change the limits of one client: LIMITS replace all limits that RULE has for it.

    NAME=VALUE are the features of the key of the rule, such as user=acme. LIMITS are one word, such as 1000/minute,
    "1000/minute; 20000/day", or unlimited. An earlier override of the client is replaced.
    """
    rule, features = await _client(call, limiter, arguments)
    override = await call(limiter.clients, "override", rule.name, features, arguments.limits, arguments.for_)
    notes = _notes_on_interval(limiter)
    if "concurrent" in override.limits:
        hint = "there, the client keeps the limits of the rule"
        notes.insert(0, f"`ratelimit-mw serve` cannot decide concurrent limits: {hint}")
    return Answer(override_json(override, limiter.rules), [_override_table(limiter, [override])], notes)


@operation("override list", "/v1/overrides", "FILE", "FILE api user=acme", "APP --json")
async def list_overrides(call: Call, limiter: Limiter, arguments: OverridesArguments) -> Answer:
    """Show all overrides, the overrides of RULE, or the override of one client.

    Overrides that have ended are not shown.
    """
    rule = None if arguments.rule is None else limiter.rules.named(arguments.rule)
    key = client_key(*await _client(call, limiter, arguments)) if rule and arguments.features else None
    await call(limiter, "start")
    every = await call(limiter.clients, "overrides")
    shown = [each for each in every if arguments.rule in (None, each.rule) and key in (None, each.key)]
    notes = [] if shown else ["there is no such override" if every else "there are no overrides"]
    if shown and key is None and (hint := secret_hint(limiter, limiter.rules.rules)):
        notes.append(f"{hint}. To find a client, name its rule and its features")
    json = {"overrides": [override_json(each, limiter.rules) for each in shown]}
    return Answer(json, [_override_table(limiter, shown)], notes)


@operation("override remove", "/v1/override/remove", "FILE api user=acme", "APP login ip=192.0.2.7 --json", writes=True)
async def remove_override(call: Call, limiter: Limiter, arguments: ClientArguments) -> Answer:
    """Remove the override of one client, so that it has the limits of RULE again.

    NAME=VALUE are the features of the key of the rule. The exit code is 1 when the client has no override.
    """
    rule, features = await _client(call, limiter, arguments)
    is_removed = await call(limiter.clients, "remove_override", rule.name, features)
    json, client = client_json(rule.name, features, removed=is_removed), " ".join(words_of(features)) or ALL_CLIENTS
    if not is_removed:
        return Answer(json, notes=[f"rule {rule.name} has no override for {client}. {_SPELLING}"], found_wrong=True)
    return Answer(json, notes=[f"override of {client} removed from rule {rule.name}", *_notes_on_interval(limiter)])


@operation("override clear", "", "FILE", "APP", writes=True)
async def clear_overrides(call: Call, limiter: Limiter, _arguments: NoArguments) -> Answer:
    """Remove all overrides and all bans from all rules, even when their record in the store is damaged."""
    await call(limiter, "start")
    await call(limiter.clients, "clear_overrides")
    return Answer({"cleared": True}, notes=["all overrides removed", *_notes_on_interval(limiter)])


def _override_table(limiter: Limiter, overrides: Iterable[ClientOverride]) -> Table:
    rules = limiter.rules
    rows: list[dict[str, Cell]] = [
        {
            "rule": each.rule if each.rule in rules.by_name else f"{each.rule} (unknown)",
            "client": client_text(each.key, each.rule, rules) or ALL_CLIENTS,
            "limits": each.limits.split("; "),
            "until": "no end" if each.until is None else time_text(each.until),
        }
        for each in overrides
    ]
    return Table(f"Overrides in {_place(limiter)}", rows)


def _notes_on_interval(limiter: Limiter) -> list[str]:
    interval = limiter.settings.reload_interval
    if not interval:
        return ["reload_interval = 0: your workers apply the change when they start"]
    return [f"your workers apply the change within {span_text(interval / SECOND)} (reload_interval)"]
