"""The features that a middleware has to read: those of the rules and lists that it decides itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from typing import Final

from ..errors import ConfigError
from ..keys.parts import Part
from ..rules.compiled import CompiledRule
from ..rules.lookup import unread_names
from ..rules.priorities import PRIORITY
from ..rules.ruleset import RuleSet
from ..rules.values import FeatureCost
from ..settings.rules import check_lists, check_rule

_USER_FEATURES: Final = frozenset({"user", "group", "plan"})
"""The features that are known inside authentication."""

ErrorOf = Callable[[str], ConfigError]
"""Returns an error about a feature, with the place of the option of a rule or a list that needs the feature."""


class RulesHere:
    """The rules of a middleware, and which of them it decides itself.

    A middleware before the user leaves rules to the inner one. Where it does not know the routes, ``knows`` returns
    whether it can read the part of a key.
    """

    def __init__(self, every: RuleSet, has_routes: bool, knows: Callable[[str], bool] | None = None) -> None:
        self.rules = every if knows is None else every.without_amendments()
        all_rules = self.rules.rules
        foreign = {rule for rule in all_rules if knows is not None and not _is_known(rule, knows)}
        # Your code passes the features of a rule that only it decides.
        named = [rule for rule in all_rules if rule.source.matches.is_only_named]
        decided = [rule for rule in all_rules if rule not in foreign and rule not in named]
        paths = {entry.part: f"lists.{entry.kind}.{entry.part}" for entry in self.rules.lists.entries}
        of_lists = [part for part in self.rules.lists.parts if knows is None or knows(part)]
        self.needs = {part: partial(ConfigError, path=paths.get(part, "bans")) for part in of_lists}
        """The parts to read, each with its error. The first rule counts. Views or paths provide the other parts."""
        for rule in decided:
            provided = () if has_routes else rule.captures.names
            for part, option in _options_of(rule).items():
                if part.feature not in provided:
                    self.needs.setdefault(part, partial(rule.error, path=option))
        self.optional = [part for rule in named for part in rule.source.parts]
        """Parts that may have no function."""
        of_user = {rule for rule in all_rules if _USER_FEATURES & {*rule.source.needs}}
        self.left_to_inner = frozenset(rule.name for rule in foreign | of_user)
        """The names of the rules that are left to the inner middleware, which knows the user and the route."""
        self.waits = any(rule.lookup or rule.source.wait_us for rule in all_rules)
        """Whether a decision may wait for a function of limits, or a slot."""

    def check_addresses(self, ipv6_prefix: int) -> None:
        """Raise ``ConfigError`` for an address that no client has."""
        check_lists(self.rules.lists, ipv6_prefix)
        for rule in self.rules.rules:
            with rule.located():
                check_rule(rule.source, ipv6_prefix)

    def check_parameters(self, provided: Set[str]) -> None:
        """Raise ``ConfigError`` for a function of limits that names a feature, and is passed a part of the key."""
        for rule in self.rules.rules:
            for name in unread_names(rule.source.limits, rule.source.arguments) & provided:
                fix = f'Write limits={{"{name}": function}}, or rename the parameter'
                message = f"the function is passed the parts of the key, not the feature {name!r}. {fix}"
                raise rule.error(message, "limits")

    def without_user(self) -> Iterator[str]:
        """Yield what rules and lists do where no user is known. Views pass it to rules that only they decide."""
        for rule in self.rules.rules:
            if "user" in rule.source.needs and not rule.source.matches.is_only_named:
                yield f"the rule {rule.name!r} may {'never apply' if requires_user(rule) else 'count no user'}"
        for kind in ("deny", "allow"):
            if "user" in (part.feature for part in self.rules.lists.names(kind)):
                yield f"the {kind} list by user may never apply"


def requires_user(rule: CompiledRule) -> bool:
    """Return whether a rule never applies without a user. A key such as "user|ip" has another part instead of it."""
    matched = ((name,) for name, _ in rule.source.matches.features)
    return any({"user"} == {part.feature for part in parts} for parts in (*rule.source.entries, *matched))


def _is_known(rule: CompiledRule, knows: Callable[[str], bool]) -> bool:
    """Return whether a middleware without the routes can decide a rule. It reads nothing for rules of views."""
    return not rule.source.matches.views and all(map(knows, rule.source.parts))


def _options_of(rule: CompiledRule) -> Mapping[Part, str]:
    """Return the option that each part of a rule is in. The key comes before all others."""
    source = rule.source
    options: dict[str, str] = dict.fromkeys(source.cost.parts if isinstance(source.cost, FeatureCost) else (), "cost")
    options |= {part: f"per.{part}" for part, _ in source.tables if part}
    options |= {part: f"match.{part}" for part, _ in source.matches.features}
    options |= {PRIORITY: "reserve"} if source.reserve else {}
    options |= {part: "key" for names in source.entries for part in names}
    return {part: options.get(part, "") for part in source.parts}
