"""Rules beside the routes that they apply to, as lines of text, for commands that know an application. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from . import describe
from .marks import Mark, MessageMark, ViewMarks
from .plan import CompiledRule
from .ruleset import Override, RuleSet

_PRECEDENCE: Final = (
    "All rules that apply to a request hold together: those of the settings and those of decorators.",
    "A rule with overrides changes a decorator's rule. An exemption takes precedence over all rules.",
)


class Marked(Protocol):
    """The marks of a view, by the method of the request."""

    def for_method(self, method: str) -> ViewMarks: ...


@dataclass(frozen=True)
class Route:
    """One route of an application: its template, its methods, and the marks of its view."""

    template: str
    methods: tuple[str, ...]
    marked: Marked

    def views(self) -> dict[str, ViewMarks]:
        """The marks for each method."""
        return {method: self.marked.for_method(method) for method in self.methods}

    def described(self, methods: Sequence[str]) -> list[str]:
        """The route in words, with its methods when they are not all; empty without methods."""
        every = len(methods) == len(self.methods)
        return [f"{'' if every else '/'.join(methods) + ' '}{self.template}"] if methods else []


class Overview:
    """The rules of a limiter for an application with these routes."""

    def __init__(self, rules: RuleSet, overrides: Mapping[str, Override], routes: Iterable[Route]) -> None:
        self._rules = rules
        self._overrides = overrides
        self._routes_of: dict[str, list[str]] = {}
        self._of_messages: set[str] = set()
        self.exempt: list[str] = []
        """The exemptions in words: "/health from every rule"."""
        for route in routes:
            self._note_marks(route)
            self._note_exemptions(route)

    def _note_marks(self, route: Route) -> None:
        views = route.views().items()
        for mark in dict.fromkeys(mark for _, view in views for mark in _all_of(view)):
            name = self._rules.rule_of(mark).name
            methods = [method for method, view in views if mark in _all_of(view) and not view.is_exempt_from(name)]
            self._routes_of.setdefault(name, []).extend(route.described(methods))
            self._of_messages |= {name} if isinstance(mark, MessageMark) else set()

    def _note_exemptions(self, route: Route) -> None:
        views = route.views().items()
        for names in dict.fromkeys(view.exempt for _, view in views if view.exempt is not None):
            exempted = route.described([method for method, view in views if view.exempt == names])
            self.exempt += [f"{description} from {', '.join(names) or 'every rule'}" for description in exempted]

    def rules(self) -> Iterator[str]:
        """A table of all rules, then the exemptions, the lists and the precedence."""
        header = ("rule", "source", "applies to", "key", "limits")
        yield from _table([header, *(self._row(rule) for rule in self._rules.rules)])
        yield from self.beside_rules()

    def beside_rules(self) -> Iterator[str]:
        """The exemptions, the lists and the precedence."""
        yield from (f"exempt: {exemption}" for exemption in self.exempt)
        allowed, denied = map(", ".join, self._rules.lists.names())
        if allowed:
            yield f"allow list: {allowed}; takes precedence over the deny list and all rules"
        if denied:
            yield f"deny list: {denied}; takes precedence over all rules"
        yield from _PRECEDENCE

    def explained(self, method: str, path: str, host: str, endpoint: str, view: ViewMarks) -> Iterator[str]:
        """The rules that apply to one request, and the reason why each of the others does not."""
        applying = self._rules.plan(method, path, host, view).rules
        yield f"{method} {path} is routed to {endpoint}"
        rows = [("applies", rule.name, describe.key_of(rule), _limits(rule), _features(rule)) for rule in applying]
        rows += [
            ("does not apply", rule.name, self.why_not(rule, method, path, host, view), "", "")
            for rule in self._rules.rules
            if rule not in applying
        ]
        yield from _table(rows)

    def has_rules_for(self, method: str, path: str, host: str, view: ViewMarks) -> bool:
        """Whether any rule applies to a request."""
        return bool(self._rules.plan(method, path, host, view).rules)

    def source_of(self, rule: CompiledRule) -> str:
        """Where a rule comes from: the settings, a decorator, or both."""
        if rule.name not in self._routes_of:
            return "settings"
        decorator = "@messages" if rule.name in self._of_messages else "@limit"
        return f"{decorator} and settings" if rule.name in self._overrides else decorator

    def applies_to(self, rule: CompiledRule) -> list[str]:
        """The requests that a rule applies to: those of its views, or those that it matches."""
        routes = self._routes_of.get(rule.name)
        if routes is None:
            return describe.match_of(rule)
        methods = "/".join(sorted(rule.source.matches.methods))
        return [" ".join(filter(None, (methods, ", ".join(dict.fromkeys(routes)), _features(rule))))]

    def _row(self, rule: CompiledRule) -> tuple[str, ...]:
        applies_to = ", ".join(self.applies_to(rule))
        return (rule.name, self.source_of(rule), applies_to, describe.key_of(rule), _limits(rule))

    def why_not(self, rule: CompiledRule, method: str, path: str, host: str, view: ViewMarks) -> str:
        """The first reason why a rule does not apply to a request for this view; "" when it may apply."""
        if any(self._rules.rule_of(mark) is rule for mark in view.messages):
            return "it limits the messages of the WebSocket"
        if rule.name in self._routes_of and all(self._rules.rule_of(mark) is not rule for mark in _all_of(view)):
            return f"it is on {', '.join(dict.fromkeys(self._routes_of[rule.name]))}"
        if view.is_exempt_from(rule.name):
            return "the view is exempt"
        return describe.mismatch(rule, method, path, host)


def _all_of(view: ViewMarks) -> tuple[Mark, ...]:
    return (*view.marks, *view.messages)


def _limits(rule: CompiledRule) -> str:
    return "; ".join(describe.limits_of(rule))


def _features(rule: CompiledRule) -> str:
    """The conditions on features, which only a real request can meet."""
    conditions = (f"{name} is {' or '.join(sorted(values))}" for name, values in rule.source.matches.features)
    return " ".join(f"when {condition}" for condition in conditions)


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
