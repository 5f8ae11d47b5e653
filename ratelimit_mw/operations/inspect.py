"""The operation ``inspect``: the keys of a store, of one client or of all."""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from ..decision import Decision, prefix_of, rule_of
from ..errors import ConfigError, StoreError
from ..limiter.clients import KeyStates
from ..limiter.limiter import Limiter
from ..rules.client_key import client_key, features_of, missing_in_key, similar_names, words_of_entries
from ..rules.compiled import CompiledRule
from ..rules.ruleset import RuleSet
from ..stores.blocking import Call
from .answer import Answer, Cell, Table
from .arguments import InspectArguments, read_features
from .clients import (
    client_cell,
    counted,
    missing_in_tables,
    next_request,
    place_of,
    read_pages,
    secret_hint,
    states_of,
)
from .declare import operation
from .forms import decision_json, function_of, words_of_client
from .times import span_text

_MOST_NAMES: Final = 10
_NO_RIGHT: Final = "no permissions to run the 'scan' command"
"""A part of the reply of Redis to a script whose user lacks a right."""


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
    search, limit, rules = _KeySearch(limiter, arguments), arguments.limit, limiter.rules
    await call(limiter, "start")
    found, has_more = await search.find(call)
    shown, notes = sorted(found, key=_order)[:limit], list(search.notes())
    if has_more:
        notes.append(f"there are more than {limit:,} keys. Raise --limit, or use --rule, --feature or --prefix")
    if not shown:
        state = "is rejected" if arguments.rejected else "matches"
        hint = secret_hint(limiter, search.rules) if arguments.features else ""
        notes.append(f"no {'other ' * bool(search.functions)}client {state} now. {hint}".removesuffix(". "))
    json = {"keys": [decision_json(each, rules) for each in shown], "has_more": has_more}
    return Answer(json, [Table(place_of(limiter), [_key_row(each, rules) for each in shown])], notes, not shown)


class _KeySearch:
    """The keys that ``inspect`` shows. A rule whose key has all its features needs one call, on every store.

    The keys of other rules are listed, and those with the values of the features are decided.
    """

    def __init__(self, limiter: Limiter, arguments: InspectArguments) -> None:
        self._limiter, self._arguments = limiter, arguments
        every = limiter.rules.rules
        self.rules = every if arguments.rule is None else [limiter.rules.named(arguments.rule)]
        self._features = features = counted(limiter, arguments.features)
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

    async def find(self, call: Call) -> tuple[list[Decision], bool]:
        """Return the decisions on the next request of keys that have counts, and whether there are more than wanted."""
        arguments, found = self._arguments, list[Decision]()
        for rule in self._whole:
            states = await states_of(call, self._limiter, rule, self._features)
            found += [each for each in states if self._has_prefix(rule, each.key)]
        found = [each for each in found if not (arguments.rejected and each.allowed)]
        if not self._listed:
            return found, len(found) > arguments.limit
        listed, _ = await read_pages(lambda cursor: self._list(call, cursor), arguments.limit - len(found))
        return [*found, *listed], len(found) + len(listed) > arguments.limit

    async def _list(self, call: Call, cursor: str) -> KeyStates:
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
            return KeyStates([], None)

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


def _order(decision: Decision) -> tuple[object, ...]:
    """Put rejected clients first, and the limits of one client together."""
    ends = decision.allowed or decision.shadow, decision.allowed
    return *ends, decision.rule, decision.client, decision.quota.period_us


def _key_row(decision: Decision, rules: RuleSet) -> dict[str, Cell]:
    reason = decision.reason
    return {
        "rule": decision.rule,
        "client": client_cell(decision, rules),
        "limit": function_of(decision, rules) or decision.source.text + (f" ({reason})" if reason else ""),
        "remaining": f"{decision.remaining:,} of {decision.limit:,}",
        "next request": next_request(decision),
        "full again": span_text(decision.reset_after),
    }
