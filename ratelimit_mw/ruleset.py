"""All rules of a limiter, merged into one matcher: method, path and host in, a ``Plan`` out. Pure.

A request looks up its path, then its method, in two dictionaries; the tree is walked once for each new path.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from .errors import ConfigError
from .features import Features
from .lists import Lists
from .marks import Mark, View
from .paths import PathTree
from .plan import CompiledRule, Plan
from .rules import Rule
from .secret import NO_SECRET, Secret

__all__ = ["RuleSet"]

_PATHS_KEPT: Final = 10_000
_PLANS_KEPT: Final = 10_000
_LONGEST_PATH_KEPT: Final = 256
_METHODS_KEPT: Final = 32
_OTHER_METHOD: Final = "*"


class RuleSet:
    """Rules that were checked together: unique names, and no pair that would share a policy name."""

    def __init__(
        self,
        rules: Iterable[Rule],
        marks: Iterable[Mark] = (),
        replacements: Mapping[str, Mapping[str, Any]] | None = None,
        lists: Lists | None = None,
        secret: Secret = NO_SECRET,
    ) -> None:
        rules, marks = _rules(rules), sorted(set(marks), key=lambda mark: mark.order)
        names = [rule.name or f"rule-{i + 1}" for i, rule in enumerate(rules)]
        marked = _retuned(_named(marks), replacements or {})
        names += marked
        rules += marked.values()
        _check_unique(names)
        self.rules = [CompiledRule(rule, name, secret) for rule, name in zip(rules, names, strict=True)]
        _check_unique([limit.policy for rule in self.rules for limit in rule.limits])
        self.by_name = dict(zip(names, self.rules, strict=True))
        self.lists = lists or Lists()
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
        self._by_view: dict[tuple[_Choice, View, str], _Choice] = {}
        self._plans: dict[tuple[int, ...], Plan] = {}
        self._number_of = {rule: i for i, rule in enumerate(self.rules)}
        self._any_path = all(not rule.matches.paths for rule in rules)

    @property
    def needs(self) -> tuple[str, ...]:
        """Every feature that some rule looks at."""
        return tuple(dict.fromkeys((*self.lists.needs, *(name for rule in self.rules for name in rule.rule.needs))))

    def plan(self, method: str, path: str, host: str = "", view: View | None = None) -> Plan:
        """The plan of a request; the same object for every request with the same rules."""
        try:
            choice = (self._anywhere if self._any_path else self._by_path[path])[method]
        except KeyError:
            choice = self._choose(method, path)
        if view is not None:
            choice = self._with_view(choice, view, method)
        return choice if type(choice) is Plan else self._for_host(choice, host)  # type: ignore[arg-type]

    def keys(self, name: str, features: Features) -> list[str]:
        """Every key that a rule may count these features under; ``ConfigError`` where there is none."""
        rule = self.by_name.get(name)
        if rule is None:
            raise ConfigError(f"there is no rule {name!r}; there are {', '.join(self.by_name) or 'none'}")
        key = rule.key.of(features)
        if key is None:
            raise ConfigError(f"the key of rule {name!r} needs {rule.rule.key!r}; got {sorted(features)}")
        return list(dict.fromkeys(limit.prefix + key for limit in rule.all_limits()))

    def statuses(self, name: str) -> frozenset[int] | None:
        """The outcomes of a rule that count; None: all, also of a rule that is not here."""
        rule = self.by_name.get(name)
        return None if rule is None else rule.rule.statuses

    def of(self, mark: Mark) -> CompiledRule:
        """The rule of a mark."""
        return self.rules[self._of_mark[mark]]

    def plan_of(self, marks: Iterable[Mark], method: str, host: str, view: View | None) -> Plan:
        """The plan of marks alone, without those that do not apply to the request or that ``view`` is exempt from."""
        named = self._named(method)
        numbers = sorted(self._of_mark[mark] for mark in marks)
        rules = [(i, self.rules[i]) for i in numbers]
        return self._plan_of(tuple(i for i, rule in rules if self._takes(rule, named, host, view)))

    @staticmethod
    def _takes(rule: CompiledRule, method: str, host: str, view: View | None) -> bool:
        matches = rule.rule.matches
        left_alone = view is not None and _is_exempt(view, rule)
        return not left_alone and matches.takes_method(method) and matches.takes_host(host)

    def check(self, view: View) -> None:
        """``ConfigError`` unless a view's exemptions name rules that exist."""
        for name in view.exempt or ():
            if name not in self.by_name:
                known, where = ", ".join(self.by_name) or "none", f"@exempt on {view.exempt_on}"
                raise ConfigError(f"there is no rule {name!r}; there are {known}", of=where)

    def _with_view(self, choice: _Choice, view: View, method: str) -> _Choice:
        """The rules of the file, then those marked on the view, less those that it is exempt from."""
        named = self._named(method)
        known = self._by_view.get((choice, view, named))
        if known is None:
            numbers = choice if isinstance(choice, tuple) else tuple(self._number_of[rule] for rule in choice.rules)
            numbers += tuple(self._of_mark[mark] for mark in view.marks)
            numbers = tuple(i for i in numbers if not _is_exempt(view, self.rules[i]))
            numbers = tuple(i for i in numbers if self.rules[i].rule.matches.takes_method(named))
            known = self._by_view[choice, view, named] = self._compiled(numbers)
        return known

    def _choose(self, method: str, path: str) -> _Choice:
        """The slow way: walk the tree, then remember, within bounds that no client can move."""
        by_method = self._anywhere if self._any_path else self._by_path.get(path)
        if by_method is None:
            by_method = {}
            if len(path) <= _LONGEST_PATH_KEPT:
                if len(self._by_path) >= _PATHS_KEPT:
                    self._by_path.clear()
                self._by_path[path] = by_method
        numbers = sorted({*self._pathless, *self._tree.match(path)})
        named = self._named(method)
        choice = self._compiled(tuple(i for i in numbers if self.rules[i].rule.matches.takes_method(named)))
        if len(by_method) < _METHODS_KEPT:
            by_method[method] = choice
        return choice

    def _named(self, method: str) -> str:
        """A method as rules know it: in capitals, and one name for all that no rule names."""
        method = method.upper()
        return method if method in self._methods else _OTHER_METHOD

    def _compiled(self, numbers: tuple[int, ...]) -> _Choice:
        return numbers if any(self.rules[i].rule.matches.hosts for i in numbers) else self._plan_of(numbers)

    def _for_host(self, numbers: tuple[int, ...], host: str) -> Plan:
        return self._plan_of(tuple(i for i in numbers if self.rules[i].rule.matches.takes_host(host)))

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


def _named(marks: Sequence[Mark]) -> dict[str, Rule]:
    """The rules of marks by name: "module.view", "module.view#2" for the next on a view of that name."""
    found: dict[str, Rule] = {}
    times: Counter[str] = Counter()
    for mark in marks:
        times[mark.view] += not mark.rule.name
        name = mark.rule.name or (mark.view if times[mark.view] == 1 else f"{mark.view}#{times[mark.view]}")
        _check_unique([*found, name])
        found[name] = mark.rule
    return found


def _retuned(marked: dict[str, Rule], replacements: Mapping[str, Mapping[str, Any]]) -> dict[str, Rule]:
    """The rules with the fields that a settings file gives in place of the decorators'."""
    for name, given in replacements.items():
        if name not in marked:
            raise ConfigError(
                f"no decorator gives a rule named {name!r}; there are {', '.join(marked) or 'none'}", "replaces"
            )
        marked[name] = dataclasses.replace(marked[name], **given)
        if marked[name].matches.paths:
            raise ConfigError(f"the view of {name!r} has its path from its route", "match.path")
    return marked


def _is_exempt(view: View, rule: CompiledRule) -> bool:
    return view.exempt is not None and (not view.exempt or rule.name in view.exempt)


def _check_unique(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"two rules or policies are named {name!r}; a name stands for one")
        seen.add(name)
