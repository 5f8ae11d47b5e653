"""``KeySearch``: the keys of a store that ``ratelimit-mw inspect`` shows, and notes on the keys that are not shown."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ..algorithms.limit import prefix_of, rule_of
from ..decision import Decision
from ..errors import StoreError
from ..keys.features import Features
from ..keys.parts import part_of, word_of
from ..limiter.json_forms import words_in
from ..limiter.limiter import Limiter
from ..rules.client_key import missing_in_key, words_of_entries
from ..rules.compiled import CompiledRule
from ..stores import Store
from .clients import command_line
from .output import Failure
from .source import Source

_MOST_NAMES: Final = 10
_NO_RIGHT: Final = "can't run this command"
"""A part of the reply of Redis to a script whose user lacks a right."""


class _Need(NamedTuple):
    """The features that show more of a rule, as words of the command line."""

    rule: str
    reason: str
    words: str


_SKIPPED: Final = ("other rules use features that you did not name", "To see their clients")
_FUNCTIONS: Final = ("some rules have limits from a function, so their keys are not listed", "To see their clients")
_EARLIER: Final = ("some rules use a feature before the one that you named", "To see clients with it")
_TABLES: Final = ("some rules have limits by a feature that you did not name", "To see those of this client")
"""The kinds of notes on rules: the reason of several rules, and the purpose of naming more features."""


def _one_note(reason: str, purpose: str, needs: Sequence[_Need]) -> Iterator[str]:
    """Yield one note for all rules of a kind. Rules that need the same features are together."""
    if len(needs) == 1:
        [need] = needs
        yield f"rule {need.rule} {need.reason}. {purpose.replace('their', 'its')}, add {need.words}"
    elif needs:
        rules = dict[str, list[str]]()
        for need in needs:
            rules.setdefault(need.words, []).append(need.rule)
        words = "; or ".join(f"{words} for {', '.join(names)}" for words, names in rules.items())
        yield f"{reason}. {purpose}, add {words}"


class KeySearch:
    """The keys of some rules. A rule whose key has all its features needs one call, on every store.

    The keys of other rules are listed, and those with the values of the features are decided.

    Args:
        limiter: The limiter of the source.
        source: The rules, the lists and the command line.
        rules: The rules whose keys are shown.
        features: The features that the keys must have. Without any, all keys are listed.
        prefix: The start of one of the values in a key that is listed, with its name.
        look: Called for each key that is listed.
    """

    def __init__(
        self,
        limiter: Limiter,
        source: Source,
        rules: Iterable[CompiledRule],
        features: Features,
        prefix: str,
        look: Callable[[], object],
    ) -> None:
        self._limiter, self._source = limiter, source
        self._rules = {rule.name: rule for rule in rules}
        self._features, self._prefix, self._look = features, prefix, look
        missing = {name: missing_in_key(rule, features) for name, rule in self._rules.items()}
        self._whole = [
            rule
            for name, rule in self._rules.items()
            if not missing[name] and (features or not (rule.source.entries or prefix))
        ]
        listed = {
            name: rule
            for name, rule in self._rules.items()
            if rule not in self._whole and len(missing[name]) < len(rule.source.entries) + (not features)
        }
        self._listed = {name: rule for name, rule in listed.items() if not rule.looks_up}
        self.left_out = [name for name in listed if name not in self._listed]
        """The rules whose keys are not listed, because a function returns the limits of a client that you name."""
        self._skipped = [name for name in missing if name not in listed and missing[name]]
        self._others: dict[str, None] = {}
        self._problem = ""

    def decisions(self, rejected: bool) -> Iterator[Decision]:
        """Yield the decision on the next request of each key that has counts, or only of those that are rejected."""
        for rule in self._whole:
            found = states_of(self._limiter, rule, self._features)
            yield from (each for each in found if self._has_prefix(rule, each.key) and not (rejected and each.allowed))
        if self._listed and self._can_list():
            try:
                yield from self._list(rejected)
            except StoreError as error:
                hint = ". To list keys, the user of the store needs the right +scan" * (_NO_RIGHT in str(error))
                if not (self._whole and self._features):
                    raise StoreError(f"{error}{hint}") from error
                self._problem = f"the keys of {', '.join(self._listed)} could not be listed: {error}{hint}"

    def _list(self, rejected: bool) -> Iterator[Decision]:
        only = next(iter(self._rules)) if len(self._rules) < len(self._source.rules.rules) else None
        cursor: str | None = ""
        while cursor is not None:
            page = self._limiter.inspect(only, cursor=cursor, rejected=rejected, only=self._is_wanted)
            yield from page.decisions
            cursor = page.cursor

    def _can_list(self) -> bool:
        """Return whether the store lists keys. ``Failure`` where nothing else was asked for."""
        store = self._limiter.store
        if type(store).list_keys is not Store.list_keys:
            return True
        if not (self._whole and self._features):
            rule = next(iter(self._listed.values()))
            words = [f"--feature={word_of(part_of(names[0]))}=..." for names in rule.source.entries]
            line = command_line(self._source, "inspect", f"--rule={rule.name}", *words)
            raise Failure(f"{store.name} cannot list its keys. Ask for one client, with all features of a key: {line}")
        self._skipped += self._listed
        return False

    def _is_wanted(self, key: str) -> bool:
        self._look()
        name = rule_of(key)
        if (rule := self._listed.get(name)) is None:
            if name and name not in self._source.rules.by_name and len(self._others) < _MOST_NAMES:
                self._others[name] = None
            return False
        if self._features and not rule.key.has_values(key[len(prefix_of(key)) :], self._features):
            return False
        return self._has_prefix(rule, key)

    def _has_prefix(self, rule: CompiledRule, key: str) -> bool:
        """Return whether one of the values in a key begins with the prefix, in any case."""
        prefix = self._prefix.casefold()
        return not prefix or any(word.casefold().startswith(prefix) for word in words_in(rule, key) or ())

    @property
    def lowest(self) -> set[str]:
        """The rules with other limits for some clients, of which the lowest one decides."""
        whole = {rule.name for rule in self._whole if missing_in_tables(rule, self._features)}
        return whole | {name for name, rule in self._listed.items() if rule.tables}

    def notes(self) -> Iterator[str]:
        """Yield what the decisions do not show."""
        yield from self._notes_on_settings()
        if self._problem:
            yield self._problem
        for kind, needs in self._needs().items():
            yield from _one_note(*kind, needs)
        if self._others:
            hint = ". For the rules of decorators, write --app MODULE:APP instead of the file"
            yield f"other rules have clients, too: {', '.join(self._others)}{hint * self._source.overview.is_file}"

    def _needs(self) -> dict[tuple[str, str], list[_Need]]:
        """Return which features show more of which rule, by the kind of the reason."""
        skipped, functions = self._skipped, self.left_out
        return {
            _SKIPPED: [self._need(name, f"uses {words_of_entries(self._missing(name))}") for name in skipped],
            _FUNCTIONS: [
                self._need(name, "has limits from a function, so its keys are not listed") for name in functions
            ],
            _EARLIER: [
                _Need(rule.name, f"uses {word} before {own}", f"--feature {word}=...")
                for rule in self._whole
                for word, own in _earlier(rule, self._features)
            ],
            _TABLES: [
                _Need(rule.name, f"has limits by {name}", f"--feature {name}=...")
                for rule in self._whole
                for name in missing_in_tables(rule, self._features)
            ],
        }

    def _missing(self, name: str) -> list[tuple[str, ...]]:
        return missing_in_key(self._rules[name], self._features)

    def _need(self, name: str, reason: str) -> _Need:
        words = (f"--feature {word_of(part_of(names[0]))}=..." for names in self._missing(name))
        return _Need(name, reason, " ".join(words))

    def _notes_on_settings(self) -> Iterator[str]:
        if not self._source.settings.enabled:
            yield "enabled = false: no request is limited"
        allows = self._source.rules.lists.allows(self._features) if self._features else None
        if allows is not None:
            effect = "never limited" if allows else "rejected with 403. A reset does not change this"
            yield f"this client is on the {'allow' if allows else 'deny'} list, so its requests are {effect}"


def states_of(limiter: Limiter, rule: CompiledRule, features: Features) -> list[Decision]:
    """Return the decisions on the keys of a client that have counts, by its own limits where they are known."""
    if missing_in_tables(rule, features):
        return limiter.inspect_key(f"{rule.all_limits()[0].prefix}{rule.key.build(features)}")
    return [decision for decision in limiter.inspect(rule.name, features).decisions if decision.reset_us]


def secret_hint(source: Source, rules: Iterable[CompiledRule]) -> str:
    """Return a hint on the features whose digests are in the keys of some rules; "" without any."""
    parts = [part_of(name) for rule in rules for names in rule.source.entries for name in names]
    digested = dict.fromkeys(word_of(part) for part in parts if source.settings.secret.covers(part.feature))
    every = " and ".join(digested)
    return f"The keys have digests of {every}. The secret must be that of the application" if digested else ""


def missing_in_tables(rule: CompiledRule, features: Features) -> list[str]:
    """Return the missing features that choose the limits of a rule."""
    return [by for by, _ in rule.source.tables if by and part_of(by).value(features) is None]


def _earlier(rule: CompiledRule, features: Features) -> Iterator[tuple[str, str]]:
    """Yield the missing alternatives in a key that precede the one with a value, with that one."""
    known = rule.captures.add(features)
    for names in rule.source.entries:
        words = [word_of(part) for part in map(part_of, names)]
        has_value = [part_of(name).value(known) is not None for name in names]
        own = has_value.index(True)
        yield from ((word, words[own]) for word in words[:own])
