"""All rules of a limiter, merged into one matcher: method, path and host in, a ``Plan`` out. Pure.

A request looks up its path, then its method, in two dictionaries; the tree is walked once for each new path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from .errors import ConfigError
from .paths import PathTree
from .plan import CompiledRule, Plan
from .rules import Rule

__all__ = ["RuleSet"]

_PATHS_KEPT: Final = 10_000
_LONGEST_PATH_KEPT: Final = 256
_METHODS_KEPT: Final = 32
_OTHER_METHOD: Final = "*"


class RuleSet:
    """Rules that were checked together: unique names, and no pair that would share a policy name."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        rules = list(rules)
        names = [rule.name or f"rule-{i + 1}" for i, rule in enumerate(rules)]
        _check_unique(names)
        self.rules = [CompiledRule(rule, name) for rule, name in zip(rules, names, strict=True)]
        _check_unique([limit.policy for rule in self.rules for limit in rule.limits])
        self.by_name = dict(zip(names, self.rules, strict=True))
        self.needs_host = any(rule.matches.hosts for rule in rules)
        self._pathless = tuple(i for i, rule in enumerate(rules) if not rule.matches.paths)
        self._tree = PathTree((i, path) for i, rule in enumerate(rules) for path in rule.matches.paths)
        self._methods = frozenset({"OPTIONS"}.union(*(rule.matches.methods for rule in rules)))
        self._anywhere: dict[str, _Choice] = {}
        self._by_path: dict[str, dict[str, _Choice]] = {}
        self._plans: dict[tuple[int, ...], Plan] = {}
        self._any_path = all(not rule.matches.paths for rule in rules)

    @property
    def needs(self) -> tuple[str, ...]:
        """Every feature that some rule looks at."""
        return tuple(dict.fromkeys(name for rule in self.rules for name in rule.rule.needs))

    def plan(self, method: str, path: str, host: str = "") -> Plan:
        """The plan of a request; the same object for every request with the same rules."""
        try:
            choice = (self._anywhere if self._any_path else self._by_path[path])[method]
        except KeyError:
            choice = self._choose(method, path)
        return choice if type(choice) is Plan else self._for_host(choice, host)  # type: ignore[arg-type]

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
        named = method if method in self._methods else _OTHER_METHOD
        choice = self._compiled(tuple(i for i in numbers if self.rules[i].rule.matches.takes_method(named)))
        if len(by_method) < _METHODS_KEPT:
            by_method[method] = choice
        return choice

    def _compiled(self, numbers: tuple[int, ...]) -> _Choice:
        if any(self.rules[i].rule.matches.hosts for i in numbers):
            return numbers
        if numbers not in self._plans:
            self._plans[numbers] = Plan([self.rules[i] for i in numbers])
        return self._plans[numbers]

    def _for_host(self, numbers: tuple[int, ...], host: str) -> Plan:
        here = tuple(i for i in numbers if self.rules[i].rule.matches.takes_host(host))
        if here not in self._plans:
            self._plans[here] = Plan([self.rules[i] for i in here])
        return self._plans[here]


_Choice = Plan | tuple[int, ...]
"""A plan, or, where the host has a say, the rules among which it chooses."""


def _check_unique(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"two rules or policies are named {name!r}; a name stands for one")
        seen.add(name)
