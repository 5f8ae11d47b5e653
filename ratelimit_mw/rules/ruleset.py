"""All rules of a limiter, merged into one matcher: method, path and host in, a ``Plan`` out. Pure.

A request looks up its path, then its method, in two dictionaries; the tree is walked once for each new path.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ..errors import ConfigError, placed
from ..keys.features import Features, UnknownIP
from ..keys.secret import NO_SECRET, Secret
from .access_lists import AccessLists
from .marks import Mark, ViewMarks
from .names import printable
from .paths import PathTree
from .plan import CompiledRule, Plan
from .rule import Rule

__all__ = ["Override", "RuleSet"]

_PATHS_KEPT: Final = 10_000
_PLANS_KEPT: Final = 10_000
_LONGEST_PATH_KEPT: Final = 256
_METHODS_KEPT: Final = 32
_OTHER_METHOD: Final = "*"


class Override(NamedTuple):
    """The fields that ``rules[at]`` of the settings gives in place of a decorator's."""

    at: int
    fields: Mapping[str, Any]


class Routed(Protocol):
    """The parts of a request that rules match."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def host(self) -> str: ...


class RuleSet:
    """Rules that were checked together: unique names, and no pair that would share a policy name.

    While there are ``overrides`` of rules that no mark gives, nothing is decided: see ``complete``.
    """

    def __init__(
        self,
        rules: Iterable[Rule],
        marks: Iterable[Mark] = (),
        overrides: Mapping[str, Override] | None = None,
        lists: AccessLists | None = None,
        secret: Secret = NO_SECRET,
    ) -> None:
        rules, marks = _rules(rules), sorted(set(marks), key=lambda mark: mark.order)
        overrides = overrides or {}
        names = [rule.name or f"rule-{i + 1}" for i, rule in enumerate(rules)] + _names(marks)
        places = _places(len(rules), overrides) + [f"the limit on {mark.view}" for mark in marks]
        _check_unique(zip(names, places, strict=True))
        self._marked = names[len(rules) :]
        self._unadopted = {name: given for name, given in overrides.items() if name not in self._marked}
        rules += [_retuned(mark.rule, name, overrides) for mark, name in zip(marks, self._marked, strict=True)]
        unknown_ip = UnknownIP()
        self.rules = [CompiledRule(rule, name, secret, unknown_ip) for rule, name in zip(rules, names, strict=True)]
        _check_unique(
            (limit.policy, place) for rule, place in zip(self.rules, places, strict=True) for limit in rule.limits
        )
        self.by_name = dict(zip(names, self.rules, strict=True))
        self.lists = lists or AccessLists()
        self.needs_host = any(rule.matches.hosts for rule in rules)
        everywhere = len(rules) - len(marks)
        self.everywhere = self.rules[:everywhere]
        """The rules that stand on no view."""
        self._of_mark = {mark: everywhere + i for i, mark in enumerate(marks)}
        self._pathless = tuple(i for i, rule in enumerate(rules[:everywhere]) if not rule.matches.paths)
        self._tree = PathTree((i, path) for i, rule in enumerate(rules) for path in rule.matches.paths)
        self._methods = frozenset({"OPTIONS"}.union(*(rule.matches.methods for rule in rules)))
        self._anywhere: dict[str, _Choice] = {}
        self._by_path: dict[str, dict[str, _Choice]] = {}
        self._by_view: dict[tuple[_Choice, ViewMarks, str], _Choice] = {}
        self._plans: dict[tuple[int, ...], Plan] = {}
        self._number_of = {rule: i for i, rule in enumerate(self.rules)}
        self._any_path = all(not rule.matches.paths for rule in rules)

    @property
    def needs(self) -> tuple[str, ...]:
        """Every feature that some rule looks at."""
        return tuple(dict.fromkeys((*self.lists.needs, *(name for rule in self.rules for name in rule.source.needs))))

    def plan(self, method: str, path: str, host: str = "", view: ViewMarks | None = None) -> Plan:
        """The plan of a request; the same object for every request with the same rules."""
        try:
            choice = (self._anywhere if self._any_path else self._by_path[path])[method]
        except KeyError:
            choice = self._choose(method, path)
        if view is not None:
            choice = self._with_view(choice, view, method)
        return choice if type(choice) is Plan else self._for_host(choice, host)  # type: ignore[arg-type]

    def plan_for(self, request: Routed, view: ViewMarks | None = None) -> Plan:
        """Return the plan of a request and the marks of its view."""
        return self.plan(request.method, request.path, request.host if self.needs_host else "", view)

    def keys(self, name: str, features: Features) -> list[str]:
        """Every key that a rule may count these features under; ``ConfigError`` where there is none."""
        rule = self.by_name.get(printable(name))
        if rule is None:
            raise ConfigError(f"there is no rule {name!r}; there are {', '.join(self.by_name) or 'none'}")
        key = rule.key.of(features)
        if key is None:
            raise ConfigError(f"the key of rule {name!r} needs {rule.source.key!r}; got {sorted(features)}")
        return list(dict.fromkeys(limit.prefix + key for limit in rule.all_limits()))

    def complete(self) -> RuleSet:
        """Itself; ``ConfigError`` where settings replace a rule that no decorator gives."""
        for name, replacement in self._unadopted.items():
            raise ConfigError(
                f"no decorator gives a rule named {name!r}; there are {', '.join(self._marked) or 'none'}",
                f"rules[{replacement.at}].overrides",
            )
        return self

    def statuses(self, name: str) -> frozenset[int] | None:
        """The outcomes of a rule that count; None: all, also of a rule that is not here."""
        rule = self.by_name.get(name)
        return None if rule is None else rule.source.statuses

    def of(self, mark: Mark) -> CompiledRule:
        """The rule of a mark."""
        return self.rules[self._of_mark[mark]]

    def plan_of(self, marks: Iterable[Mark], method: str, host: str, view: ViewMarks | None) -> Plan:
        """The plan of marks alone, without those that do not apply to the request or that ``view`` is exempt from."""
        named = self._named(method)
        numbers = sorted(self._of_mark[mark] for mark in marks)
        rules = [(i, self.rules[i]) for i in numbers]
        return self._plan_of(tuple(i for i, rule in rules if self._takes(rule, named, host, view)))

    @staticmethod
    def _takes(rule: CompiledRule, method: str, host: str, view: ViewMarks | None) -> bool:
        matches = rule.source.matches
        left_alone = view is not None and _is_exempt(view, rule)
        return not left_alone and matches.takes_method(method) and matches.takes_host(host)

    def check(self, view: ViewMarks) -> None:
        """``ConfigError`` unless a view's exemptions name rules that exist."""
        for name in view.exempt or ():
            if name not in self.by_name:
                known, where = ", ".join(self.by_name) or "none", f"@exempt on {view.exempt_on}"
                raise ConfigError(f"there is no rule {name!r}; there are {known}", of=where)

    def _with_view(self, choice: _Choice, view: ViewMarks, method: str) -> _Choice:
        """The rules of the file, then those marked on the view, less those that it is exempt from."""
        named = self._named(method)
        known = self._by_view.get((choice, view, named))
        if known is None:
            numbers = choice if isinstance(choice, tuple) else tuple(self._number_of[rule] for rule in choice.rules)
            numbers += tuple(self._of_mark[mark] for mark in view.marks)
            numbers = tuple(i for i in numbers if not _is_exempt(view, self.rules[i]))
            numbers = tuple(i for i in numbers if self.rules[i].source.matches.takes_method(named))
            known = self._by_view[choice, view, named] = self._compiled(numbers)
        return known

    def _choose(self, method: str, path: str) -> _Choice:
        """The slow way: walk the tree, then remember, within bounds that no client can move."""
        self.complete()
        by_method = self._anywhere if self._any_path else self._by_path.get(path)
        if by_method is None:
            by_method = {}
            if len(path) <= _LONGEST_PATH_KEPT:
                if len(self._by_path) >= _PATHS_KEPT:
                    self._by_path.clear()
                self._by_path[path] = by_method
        numbers = sorted({*self._pathless, *self._tree.match(path)})
        named = self._named(method)
        choice = self._compiled(tuple(i for i in numbers if self.rules[i].source.matches.takes_method(named)))
        if len(by_method) < _METHODS_KEPT:
            by_method[method] = choice
        return choice

    def _named(self, method: str) -> str:
        """A method as rules know it: in capitals, and one name for all that no rule names."""
        method = method.upper()
        return method if method in self._methods else _OTHER_METHOD

    def _compiled(self, numbers: tuple[int, ...]) -> _Choice:
        return numbers if any(self.rules[i].source.matches.hosts for i in numbers) else self._plan_of(numbers)

    def _for_host(self, numbers: tuple[int, ...], host: str) -> Plan:
        return self._plan_of(tuple(i for i in numbers if self.rules[i].source.matches.takes_host(host)))

    def _plan_of(self, numbers: tuple[int, ...]) -> Plan:
        plan = self._plans.get(numbers)
        if plan is None:
            if len(self._plans) >= _PLANS_KEPT:
                # Patterns that match apart from each other make more combinations than anybody can keep.
                self._plans.clear()
                self._by_view.clear()
            plan = self._plans[numbers] = Plan([self.rules[i] for i in numbers], self.lists)
        return plan


_Choice = Plan | tuple[int, ...]
"""A plan, or, where the host has a say, the rules among which it chooses."""


def _rules(rules: Iterable[Rule]) -> list[Rule]:
    found = list(rules)
    for i, rule in enumerate(found):
        if not isinstance(rule, Rule):
            raise ConfigError(f"expected a Rule; got {rule!r}", f"rules[{i}]")
    return found


def _names(marks: Sequence[Mark]) -> list[str]:
    """What the rules of marks are called: "module.view", "module.view#2" for the next on a view of that name."""
    found: list[str] = []
    times: Counter[str] = Counter()
    for mark in marks:
        view = printable(mark.view)
        times[view] += not mark.rule.name
        found.append(mark.rule.name or (view if times[view] == 1 else f"{view}#{times[view]}"))
    return found


def _places(count: int, overrides: Mapping[str, Override]) -> list[str]:
    """Where the rules stand in the settings, among those that replace others."""
    replacing = {given.at for given in overrides.values()}
    others = (i for i in itertools.count() if i not in replacing)
    return [f"rules[{i}]" for i in itertools.islice(others, count)]


def _retuned(rule: Rule, name: str, overrides: Mapping[str, Override]) -> Rule:
    """A decorator's rule with the fields that the settings give in place of its own."""
    if name not in overrides:
        return rule
    given = overrides[name]
    with placed(f"rules[{given.at}]"):
        rule = dataclasses.replace(rule, **given.fields)
        if rule.matches.paths:
            raise ConfigError(f"the view of {name!r} has its path from its route", "match.path")
    return rule


def _is_exempt(view: ViewMarks, rule: CompiledRule) -> bool:
    return view.exempt is not None and (not view.exempt or rule.name in view.exempt)


def _check_unique(names: Iterable[tuple[str, str]]) -> None:
    """``names``: each with the place where it stands."""
    seen: dict[str, str] = {}
    for name, place in names:
        if name in seen:
            message = f"two rules or policies are named {name!r}, this one and {seen[name]}; a name stands for one"
            raise ConfigError(message, f"{place}.name" if place.startswith("rules[") else place)
        seen[name] = place
