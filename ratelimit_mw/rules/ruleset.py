"""All rules of a limiter in one matcher: method, path and host in, a ``Plan`` out. Pure.

A request looks up its path and its method in two dictionaries. The path tree is walked once for each new path.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ..errors import ConfigError, placed, suggestion
from ..keys.features import Features
from ..keys.key import UnknownIP
from ..keys.secret import NO_SECRET, Secret
from .access_lists import AccessLists
from .marks import Mark, ViewMarks
from .names import printable
from .paths import PathTree
from .plan import CompiledRule, Plan
from .rule import Rule

_PATHS_KEPT: Final = 10_000
_PLANS_KEPT: Final = 10_000
_LONGEST_PATH_KEPT: Final = 256
_METHODS_KEPT: Final = 32
_OTHER_METHOD: Final = "*"


class Override(NamedTuple):
    """The options that ``rules[position]`` of the settings gives to replace those of a decorator's rule."""

    position: int
    options: Mapping[str, Any]


class Routed(Protocol):
    """The parts of a request that rules match."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def host(self) -> str: ...


class RuleSet:
    """Rules that were checked together: their names and policy names are unique.

    While a rule in ``overrides`` has no mark, no plan is built: see ``require_complete``.
    """

    def __init__(
        self,
        rules: Iterable[Rule],
        marks: Iterable[Mark] = (),
        overrides: Mapping[str, Override] | None = None,
        lists: AccessLists | None = None,
        secret: Secret = NO_SECRET,
    ) -> None:
        rules, marks = checked_rules(rules), sorted(set(marks), key=lambda mark: mark.order)
        overrides = overrides or {}
        names = [rule.name or f"rule-{i + 1}" for i, rule in enumerate(rules)] + _names(marks)
        places = _places(len(rules), overrides) + [f"the limit on {mark.view}" for mark in marks]
        _check_unique(zip(names, places, strict=True))
        self._marked = names[len(rules) :]
        self._unused = {name: override for name, override in overrides.items() if name not in self._marked}
        rules += [_override(mark.rule, name, overrides) for mark, name in zip(marks, self._marked, strict=True)]
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
        """The rules that are not on a view."""
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
        """The features that the rules and lists use."""
        return tuple(dict.fromkeys((*self.lists.needs, *(name for rule in self.rules for name in rule.source.needs))))

    def plan(self, method: str, path: str, host: str = "", view: ViewMarks | None = None) -> Plan:
        """Return the plan of a request. Requests with the same rules get the same object."""
        try:
            choice = (self._anywhere if self._any_path else self._by_path[path])[method]
        except KeyError:
            choice = self._choose(method, path)
        if view is not None:
            choice = self._with_view(choice, view, method)
        return choice if type(choice) is Plan else self._for_host(choice, host)  # type: ignore[arg-type]

    def plan_for(self, request: Routed, view: ViewMarks | None = None) -> Plan:
        """Return the plan of a request and the marks of its view."""
        method = request.method
        try:
            choice = self._anywhere[method] if self._any_path else self._by_path[request.path][method]
        except KeyError:
            choice = self._choose(method, request.path)
        if view is not None:
            choice = self._with_view(choice, view, method)
        return choice if isinstance(choice, Plan) else self._for_host(choice, request.host)

    def keys(self, name: str, features: Features) -> list[str]:
        """Return all keys that a rule can count these features under; ``ConfigError`` when it has none."""
        rule = self.by_name.get(printable(name))
        if rule is None:
            raise ConfigError(f"unknown rule {name!r}{suggestion(name, self.by_name)}")
        key = rule.key.build(features)
        if key is None:
            entries = ["|".join(names) for names in rule.source.entries]
            raise ConfigError(f"the key of rule {name!r} needs {entries!r}; got {sorted(features)}")
        return list(dict.fromkeys(limit.prefix + key for limit in rule.all_limits()))

    def require_complete(self) -> RuleSet:
        """Return the rule set; ``ConfigError`` when the settings override a rule that no decorator has."""
        for name, override in self._unused.items():
            raise ConfigError(
                f"no decorator has a rule named {name!r}{suggestion(name, self._marked)}",
                f"rules[{override.position}].overrides",
            )
        return self

    def statuses(self, name: str) -> frozenset[int] | None:
        """The statuses that count for a rule; None means all, also for an unknown rule."""
        rule = self.by_name.get(name)
        return None if rule is None else rule.source.statuses

    def rule_of(self, mark: Mark) -> CompiledRule:
        """The compiled rule of a mark."""
        return self.rules[self._of_mark[mark]]

    def plan_of(self, marks: Iterable[Mark], method: str, host: str, view: ViewMarks | None) -> Plan:
        """The plan of these marks alone, without those that do not apply or that ``view`` is exempt from."""
        method = self._canonical(method)
        numbers = sorted(self._of_mark[mark] for mark in marks)
        rules = [(i, self.rules[i]) for i in numbers]
        return self._plan_of(tuple(i for i, rule in rules if self._takes(rule, method, host, view)))

    @staticmethod
    def _takes(rule: CompiledRule, method: str, host: str, view: ViewMarks | None) -> bool:
        matches = rule.source.matches
        is_exempt = view is not None and view.is_exempt_from(rule.name)
        return not is_exempt and matches.takes_method(method) and matches.takes_host(host)

    def check(self, view: ViewMarks) -> None:
        """``ConfigError`` when a view is exempt from a rule that does not exist."""
        for name in view.exempt or ():
            if name not in self.by_name:
                raise ConfigError(
                    f"unknown rule {name!r}{suggestion(name, self.by_name)}", of=f"@exempt on {view.exempt_on}"
                )

    def _with_view(self, choice: _Choice, view: ViewMarks, method: str) -> _Choice:
        """The rules of the settings, then those marked on the view, less those that the view is exempt from."""
        method = self._canonical(method)
        cached = self._by_view.get((choice, view, method))
        if cached is None:
            numbers = choice if isinstance(choice, tuple) else tuple(self._number_of[rule] for rule in choice.rules)
            numbers += tuple(self._of_mark[mark] for mark in view.marks)
            numbers = tuple(i for i in numbers if not view.is_exempt_from(self.rules[i].name))
            numbers = tuple(i for i in numbers if self.rules[i].source.matches.takes_method(method))
            cached = self._by_view[choice, view, method] = self._compiled(numbers)
        return cached

    def _choose(self, method: str, path: str) -> _Choice:
        """Walk the tree and cache the result. The caches are bounded, whatever clients send."""
        self.require_complete()
        by_method = self._anywhere if self._any_path else self._by_path.get(path)
        if by_method is None:
            by_method = {}
            if len(path) <= _LONGEST_PATH_KEPT:
                if len(self._by_path) >= _PATHS_KEPT:
                    self._by_path.clear()
                self._by_path[path] = by_method
        numbers = sorted({*self._pathless, *self._tree.match(path)})
        canonical = self._canonical(method)
        choice = self._compiled(tuple(i for i in numbers if self.rules[i].source.matches.takes_method(canonical)))
        if len(by_method) < _METHODS_KEPT:
            by_method[method] = choice
        return choice

    def _canonical(self, method: str) -> str:
        """The method in upper case, or one name for all methods that no rule names."""
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
                # Rules that match independently have more combinations than fit into memory.
                self._plans.clear()
                self._by_view.clear()
            plan = self._plans[numbers] = Plan([self.rules[i] for i in numbers], self.lists)
        return plan


_Choice = Plan | tuple[int, ...]
"""A plan, or the numbers of the rules from which the host selects."""


def checked_rules(rules: Iterable[Rule]) -> list[Rule]:
    """Return the rules as a list; ``ConfigError`` for anything else."""
    if isinstance(rules, str | Mapping) or not isinstance(rules, Iterable):
        example = '[Rule(limits="5/minute")]'
        raise ConfigError(f"expected a list of rules such as {example}; got {type(rules).__name__}", "rules")
    checked = list(rules)
    for i, rule in enumerate(checked):
        if not isinstance(rule, Rule):
            raise ConfigError(f"expected a Rule; got {rule!r}", f"rules[{i}]")
    return checked


def _names(marks: Sequence[Mark]) -> list[str]:
    """The names of marked rules: "module.view", and "module.view#2" for the next one on a view of that name."""
    names: list[str] = []
    times: Counter[str] = Counter()
    for mark in marks:
        view = printable(mark.view)
        times[view] += not mark.rule.name
        names.append(mark.rule.name or (view if times[view] == 1 else f"{view}#{times[view]}"))
    return names


def _places(count: int, overrides: Mapping[str, Override]) -> list[str]:
    """The paths of the rules in the settings, where rules with ``overrides`` may be between them."""
    overriding = {override.position for override in overrides.values()}
    others = (i for i in itertools.count() if i not in overriding)
    return [f"rules[{i}]" for i in itertools.islice(others, count)]


def _override(rule: Rule, name: str, overrides: Mapping[str, Override]) -> Rule:
    """A decorator's rule, with the options that the settings override."""
    if name not in overrides:
        return rule
    override = overrides[name]
    with placed(f"rules[{override.position}]"):
        rule = Rule(**{"limits": rule.limits, **rule.options, **override.options})
        if rule.matches.paths:
            raise ConfigError(f"the view of {name!r} has the path of its route. Remove match.path", "match.path")
    return rule


def _check_unique(names: Iterable[tuple[str, str]]) -> None:
    """``ConfigError`` for a name that occurs twice. ``names`` are pairs of a name and its place."""
    seen: dict[str, str] = {}
    for name, place in names:
        if name in seen:
            message = f"the name {name!r} is already used by {seen[name]}. Give each rule a name of its own"
            raise ConfigError(message, f"{place}.name" if place.startswith("rules[") else place)
        seen[name] = place
