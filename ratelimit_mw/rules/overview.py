"""Rules beside the routes that they look at, as lines of text: for commands that know an application. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from . import describe as described
from .marks import Mark, MessageMark, ViewMarks
from .paths import pattern_matches
from .plan import CompiledRule
from .ruleset import Override, RuleSet

__all__ = ["Marked", "Overview", "Route"]

_PRECEDENCE: Final = (
    "All rules that look at a request apply together: those of the settings, then those of decorators.",
    "A setting that replaces a rule changes the decorator's; an exemption goes before all rules.",
)


class Marked(Protocol):
    """What is marked on a view, by the request's method."""

    def for_method(self, method: str) -> ViewMarks: ...


@dataclass(frozen=True)
class Route:
    """One route of an application: its template, the methods that it answers, what is marked on its view."""

    template: str
    methods: tuple[str, ...]
    marked: Marked

    def views(self) -> dict[str, ViewMarks]:
        """What is marked, by method."""
        return {method: self.marked.for_method(method) for method in self.methods}

    def at(self, methods: Sequence[str]) -> list[str]:
        """The route in words, with its methods where they are not all; nothing where they are none."""
        every = len(methods) == len(self.methods)
        return [f"{'' if every else '/'.join(methods) + ' '}{self.template}"] if methods else []


class Overview:
    """What a limiter's rules come to for an application with these routes."""

    def __init__(self, rules: RuleSet, overrides: Mapping[str, Override], routes: Iterable[Route]) -> None:
        self._rules = rules
        self._replaced = overrides
        self._stands: dict[str, list[str]] = {}
        self._of_messages: set[str] = set()
        self.exempt: list[str] = []
        """Who is left alone by what: "/health from every rule"."""
        for route in routes:
            self._note_marks(route)
            self._note_exemptions(route)

    def _note_marks(self, route: Route) -> None:
        views = route.views().items()
        for mark in dict.fromkeys(mark for _, view in views for mark in _all_of(view)):
            name = self._rules.of(mark).name
            methods = [method for method, view in views if mark in _all_of(view) and not _exempt(view, name)]
            self._stands.setdefault(name, []).extend(route.at(methods))
            self._of_messages |= {name} if isinstance(mark, MessageMark) else set()

    def _note_exemptions(self, route: Route) -> None:
        views = route.views().items()
        for names in dict.fromkeys(view.exempt for _, view in views if view.exempt is not None):
            where = route.at([method for method, view in views if view.exempt == names])
            self.exempt += [f"{place} from {', '.join(names) or 'every rule'}" for place in where]

    def rules(self) -> Iterator[str]:
        """Every rule: who gives it, what it looks at, what it counts by, its limits. Then the exemptions."""
        header = ("rule", "given by", "looks at", "counts by", "limits")
        yield from _table([header, *(self._row(rule) for rule in self._rules.rules)])
        yield from self.beside_rules()

    def beside_rules(self) -> Iterator[str]:
        """Who is exempt, which lists there are, and what goes before what."""
        yield from (f"exempt: {exemption}" for exemption in self.exempt)
        allowing, denying = map(", ".join, self._rules.lists.names())
        if allowing:
            yield f"allow list: {allowing}; goes before the deny list and all rules"
        if denying:
            yield f"deny list: {denying}; goes before all rules"
        yield from _PRECEDENCE

    def explained(self, method: str, path: str, host: str, endpoint: str, view: ViewMarks) -> Iterator[str]:
        """Which rules look at one request, and why the others do not."""
        looking = self._rules.plan(method, path, host, view).rules
        yield f"{method} {path} is answered by {endpoint}"
        rows = [("looks", rule.name, described.key_of(rule), _limits(rule), _features(rule)) for rule in looking]
        rows += [
            ("does not look", rule.name, self.why_not(rule, method, path, host, view), "", "")
            for rule in self._rules.rules
            if rule not in looking
        ]
        yield from _table(rows)

    def looks(self, method: str, path: str, host: str, view: ViewMarks) -> bool:
        """Whether any rule does."""
        return bool(self._rules.plan(method, path, host, view).rules)

    def given_by(self, rule: CompiledRule) -> str:
        """Where a rule comes from."""
        if rule.name not in self._stands:
            return "settings"
        decorator = "@messages" if rule.name in self._of_messages else "@limit"
        return f"{decorator} and settings" if rule.name in self._replaced else decorator

    def looks_at(self, rule: CompiledRule) -> list[str]:
        """Which requests a rule looks at: those of its views, or those that it matches."""
        stands = self._stands.get(rule.name)
        if stands is None:
            return described.match_of(rule)
        methods = "/".join(sorted(rule.source.matches.methods))
        return [" ".join(filter(None, (methods, ", ".join(dict.fromkeys(stands)), _features(rule))))]

    def _row(self, rule: CompiledRule) -> tuple[str, ...]:
        looks_at = ", ".join(self.looks_at(rule))
        return (rule.name, self.given_by(rule), looks_at, described.key_of(rule), _limits(rule))

    def why_not(self, rule: CompiledRule, method: str, path: str, host: str, view: ViewMarks) -> str:
        """The first reason why a rule does not look at a request that this view answers."""
        match = rule.source.matches
        if any(self._rules.of(mark) is rule for mark in view.messages):
            return "it counts the messages that come afterwards"
        if rule.name in self._stands and all(self._rules.of(mark) is not rule for mark in _all_of(view)):
            return f"stands on {', '.join(dict.fromkeys(self._stands[rule.name]))}"
        if match.paths and not any(pattern_matches(pattern, path) for pattern in match.paths):
            return f"path: not {' or '.join(match.paths)}"
        if _exempt(view, rule.name):
            return "the view is exempt"
        if not match.takes_method(method):
            return (
                f"method: not {' or '.join(sorted(match.methods))}" if match.methods else "pre-flights are left alone"
            )
        return f"host: not {' or '.join(match.hosts)}"


def _exempt(view: ViewMarks, rule: str) -> bool:
    return view.exempt is not None and (not view.exempt or rule in view.exempt)


def _all_of(view: ViewMarks) -> tuple[Mark, ...]:
    return (*view.marks, *view.messages)


def _limits(rule: CompiledRule) -> str:
    return "; ".join(described.limits_of(rule))


def _features(rule: CompiledRule) -> str:
    """What else has to hold, which only a real request can tell."""
    conditions = (f"{name} is {' or '.join(sorted(values))}" for name, values in rule.source.matches.features)
    return " ".join(f"when {condition}" for condition in conditions)


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
