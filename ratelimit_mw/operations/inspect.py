"""The operation ``inspect``: the keys of a store, of one client or of all."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, Final

from msgspec import Meta

from ..decision import Decision, prefix_of, rule_of
from ..errors import ConfigError, StoreError
from ..keys.features import Features
from ..limiter.clients import KeyStates
from ..limiter.limiter import Limiter
from ..rules.compiled import CompiledRule, similar_names, words_of_entries
from ..runtime.blocking import Call
from .answer import Answer, Cell, Table, decision_json, span_text, words_of_client
from .arguments import Most, OnlyRule, operation, read_features
from .clients import (
    ALL_CLIENTS,
    counted,
    describe_store,
    missing_in_tables,
    next_request,
    pages_of,
    read_pages,
    secret_hint,
    states_of,
)

_VALUE: Final = Meta(
    title="NAME=VALUE",
    description="Show only the client with this value, such as ip=192.0.2.7. Repeat it to name more.",
)
_PREFIX: Final = Meta(
    title="TEXT", description="Show only clients with a value that starts with this text, such as ip=192.0.2."
)
_REJECTED: Final = Meta(description="Show only clients whose next request would be rejected.")


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
async def inspect(
    call: Call,
    limiter: Limiter,
    *,
    rule: OnlyRule = None,
    features: Annotated[Mapping[str, Any] | None, _VALUE] = None,
    prefix: Annotated[str, _PREFIX] = "",
    rejected: Annotated[bool, _REJECTED] = False,
    limit: Most = 100,
) -> Answer:
    """Show the clients in the store, and the rest of each limit.

    The command shows all clients that have counts, or the one that you name. It consumes nothing. To reset a client,
    pass its rule and its values to `reset`. The exit code is 1 when no client matches.

    If a function returns the limits of a rule, name all features of its key to see a client. If the limits of a rule
    depend on a feature such as plan, name that feature, too. Otherwise the lowest limits decide.
    """
    search = _KeySearch(limiter, rule, features or {}, prefix, rejected)
    found, has_more = await search.find(call, limit)
    shown, notes = sorted(found, key=_order)[:limit], list(search.notes())
    if has_more:
        notes.append(f"there are more than {limit:,} keys. Raise --limit, or use --rule, --feature or --prefix")
    if not shown:
        state = "is rejected" if rejected else "matches"
        hint = secret_hint(limiter, search.rules) if features else ""
        notes.append(f"no {'other ' * bool(search.functions)}client {state} now. {hint}".removesuffix(". "))
    keys = [decision_json(each, limiter.rules) for each in shown]
    json = {"keys": keys, "has_more": has_more}
    return Answer(json, [Table(describe_store(limiter), list(map(_key_row, keys)))], notes, not shown)


class _KeySearch:
    """The keys that ``inspect`` shows. A rule whose key has all its features needs one call, on every store.

    The keys of other rules are listed, and those with the values of the features are decided.
    """

    def __init__(self, limiter: Limiter, rule: str | None, features: Features, prefix: str, rejected: bool) -> None:
        self._limiter, self._prefix, self._rejected = limiter, prefix.casefold(), rejected
        self.rules = limiter.rules.rules if rule is None else [limiter.rules.named(rule)]
        self._rule, self._features = rule, counted(limiter, features)
        self._check_features(prefix)
        self._whole, self._skipped, self.functions = list[CompiledRule](), list[CompiledRule](), list[CompiledRule]()
        self._listed, self._others = dict[str, CompiledRule](), dict[str, None]()
        self._problem = ""
        for each in self.rules:
            self._add(each)

    def _check_features(self, prefix: str) -> None:
        of_prefix = read_features(filter(None, [prefix]))
        for given in (self._features, of_prefix):
            check_used(self.rules, given)
        for name in filter(self._limiter.settings.secret.covers, of_prefix):
            raise ConfigError(f"the keys have digests of {name}. Name the whole value as a feature", "prefix")

    def _add(self, rule: CompiledRule) -> None:
        """Choose how the keys of a rule are found."""
        entries, missing = rule.source.entries, rule.missing_in_key(self._features)
        if not missing:
            rule.client_key(self._features)  # raises for an invalid value
            self._whole.append(rule)
        elif self._features and len(missing) == len(entries):
            self._skipped.append(rule)
        elif rule.lookup:  # only the features of a client show its limits
            self.functions.append(rule)
        else:
            self._listed[rule.name] = rule

    async def find(self, call: Call, limit: int) -> tuple[list[Decision], bool]:
        """Return the decisions on the next request of keys that have counts, and whether there are more than wanted."""
        found = list[Decision]()
        for rule in self._whole:
            states = await states_of(call, self._limiter, rule, self._features)
            found += [each for each in states if self._has_prefix(rule, each.key)]
        found = [each for each in found if not (self._rejected and each.allowed)]
        if not self._listed:
            return found, len(found) > limit
        left, pages = limit - len(found), pages_of(call)
        listed, has_more = await read_pages(lambda cursor: self._list(call, cursor), left, pages)
        return [*found, *listed], has_more

    async def _list(self, call: Call, cursor: str) -> KeyStates:
        arguments = self._rule, None, cursor, self._rejected, self._is_wanted
        try:
            return await call(self._limiter.clients, "inspect", *arguments)  # type: ignore[no-any-return]
        except (StoreError, ConfigError) as error:
            if not (self._whole and self._features):
                raise
            self._problem = f"the keys of {', '.join(self._listed)} could not be listed: {error}"
            return KeyStates([], None)

    def _is_wanted(self, key: str) -> bool:
        name = rule_of(key)
        if (rule := self._listed.get(name)) is None:
            if name and name not in self._limiter.rules.by_name:
                self._others[name] = None
            return False
        features, client = self._features, key[len(prefix_of(key)) :]
        has_values = not features or rule.key.has_values(client, rule.captures.add(features))
        return has_values and self._has_prefix(rule, key)

    def _has_prefix(self, rule: CompiledRule, key: str) -> bool:
        """Return whether one of the values in a key begins with the prefix, in any case."""
        if not self._prefix:
            return True
        words = words_of_client(rule, key[len(prefix_of(key)) :])
        return any(word.casefold().startswith(self._prefix) for word in words)

    def _note_on_lists(self) -> str:
        lists = self._limiter.rules.lists
        allows = lists.allows(self._features) if self._features else None
        if allows is None:
            return ""
        if allows:
            return "this client is on the allow list, so its requests are never limited"
        is_banned = lists.bans is not None and lists.bans.find(self._features)
        place = "banned from all rules" if is_banned else "on the deny list"
        return f"this client is {place}, so its requests are rejected with 403. A reset does not change this"

    def notes(self) -> Iterator[str]:
        """Yield what the decisions do not show."""
        if not self._limiter.settings.enabled:
            yield "enabled = false: no request is limited"
        yield from filter(None, [self._note_on_lists(), self._problem])
        for rules, reason in (
            (self._skipped, "have keys of other features, which you can name"),
            (self.functions, "have limits from a function, so their keys are not listed. Name all features"),
        ):
            if rules:
                needs = (f"{rule.name} ({words_of_entries(rule.missing_in_key(self._features))})" for rule in rules)
                yield f"some rules {reason}: {', '.join(needs)}"
        for rule in self.rules:
            if by := missing_in_tables(rule, self._features):
                yield f"rule {rule.name} has limits by {', '.join(by)}. The lowest decide, unless you name it"
        here = self._limiter.adaptive.levels()
        if unknown := [rule.name for rule in self.rules if rule.source.adapts and rule.name not in here]:
            own = "each process of your application has its own, in its metrics and its dashboard"
            yield f"the current adaptive limits of {', '.join(unknown)} are not known here: {own}"
        if self._others:
            yield f"other rules, such as those of decorators, have clients, too: {', '.join(self._others)}"


def check_used(rules: Collection[CompiledRule], features: Iterable[str], others: Collection[str] = ()) -> None:
    """Raise ``ConfigError`` for features that no rule uses, such as one with a typo, and that are not ``others``."""
    used = {name for rule in rules for name in rule.used_features}
    if unused := [name for name in features if name not in used and name not in others]:
        similar = similar_names(unused, used.union(others))
        known = ", ".join(sorted(used)) or "no feature"
        raise ConfigError(f"no rule uses {' and '.join(unused)}.{similar} The rules use {known}")


def _order(decision: Decision) -> tuple[object, ...]:
    """Put rejected clients first, and the limits of one client together."""
    return decision.allowed, decision.shadow, decision.rule, decision.client, decision.quota.period_us


def _key_row(key: Mapping[str, Any]) -> dict[str, Cell]:
    reason = f" ({key['reason']})" if "reason" in key else ""
    return {
        "rule": key["rule"],
        "client": key["client"] or ALL_CLIENTS,
        "limit": f"{key['quota']}{reason}",
        "remaining": f"{key['remaining']:,} of {key['limit']:,}",
        "next request": next_request(key),
        "full again": span_text(key["reset_after"]),
    }
