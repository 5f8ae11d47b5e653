"""Name the rules of settings and of decorators, with the changes that settings make to the latter. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

from ..errors import ConfigError, error_of, error_path
from .marks import Mark, MessageMark
from .names import ascii_name
from .options import RuleDefaults
from .places import DEFAULTS, Location
from .rule import Rule, build_rule, with_defaults

_NUMBER: Final = re.compile(r"-\d+\Z")
"""The number of a limit behind the name of its rule."""


class Amendment(NamedTuple):
    """The options that ``rules[position]`` of the settings gives to replace those of a decorator's rule."""

    position: int
    options: Mapping[str, Any]


class NamedRule(NamedTuple):
    """A rule with its name, the name that clients see, and the place of the name in messages."""

    rule: Rule
    name: str
    shown: str
    title: str
    mark: Mark | None = None
    places: Mapping[str, Location] = {}
    """Where the rule is written, under ``""``, and where those of its options are that the settings give to it."""

    @property
    def is_of_messages(self) -> bool:
        """Whether it limits messages, which have no outcomes and hold no slots."""
        return isinstance(self.mark, MessageMark)

    def complete(self, amendments: Mapping[str, Amendment], defaults: RuleDefaults, source: str) -> NamedRule:
        """Return the rule with the options that the settings override, and with their defaults."""
        amendment = amendments.get(self.name) if self.mark else None
        rule = self._amend(amendment, defaults)
        return self._replace(rule=rule, places=self._places(rule, amendment, source))

    def _amend(self, amendment: Amendment | None, defaults: RuleDefaults) -> Rule:
        if self.mark is None:
            return with_defaults(self.rule, defaults)
        if self.is_of_messages:
            defaults = {**defaults, "count_when": None}
        if amendment is None:
            with error_of(self.title):
                return with_defaults(self.rule, defaults)
        with error_path(f"rules[{amendment.position}]"):
            given, options = self.rule.given, amendment.options
            rule = build_rule({**given, **options}, defaults, inherited=given.keys() - options.keys())
            if field := rule.matches.route_field:
                problem = f"the view of {self.name!r} has the {field} of its route. Remove match.{field}"
                raise ConfigError(problem, f"match.{field}")
        return rule

    def _places(self, rule: Rule, amendment: Amendment | None, source: str) -> dict[str, Location]:
        label = f"rule {self.name!r}"
        decorator = self.mark.place.rpartition(" at ")[2] if self.mark else ""
        place = rule.place._replace(label=f"{decorator}: {label}" if decorator else label)
        if place.file:
            label = f'{place.path} "{self.name}"' if place.path.endswith("]") else place.path
            place = place._replace(label=label)
        places = {"": place}
        if source and amendment is not None:
            path = f"rules[{amendment.position}]"
            options = {*amendment.options, *(["cost"] if "limits" in amendment.options else ())}  # wrong together
            places |= dict.fromkeys(options, Location(source, path, f'{path} "{self.name}"'))
        for option in rule.defaulted if source else ():
            places[option] = Location(source, DEFAULTS, label, f". The rule has {option} from [defaults]")
        return places


def named_rules(rules: Sequence[Rule], marks: Sequence[Mark]) -> list[NamedRule]:
    """Name the rules of settings, then those of marks; ``ConfigError`` for a name that occurs twice."""
    named = []
    for i, rule in enumerate(rules):
        name = rule.name or f"rule-{i + 1}"
        named.append(NamedRule(rule, name, name, rule.place.path or f"rules[{i}]"))
    named += _rules_of_marks(marks, [each.name for each in named])
    check_unique((each.name, each.title) for each in named)
    return named


def _rules_of_marks(marks: Sequence[Mark], others: Iterable[str]) -> Iterator[NamedRule]:
    """Name the rules of marks: "module.view", and "module.view#2" for the next one on a view of that name.

    Clients see "view", and "view#2" for the next one of that name.
    """
    given = [*others, *(mark.rule.name for mark in marks if mark.rule.name)]
    taken = {*given, *(_NUMBER.sub("", name) for name in given)}
    times: Counter[str] = Counter()
    for mark in marks:
        name = shown = mark.rule.name
        if name is None or shown is None:
            view = ascii_name(mark.view)
            times[view] += 1
            name, short = _numbered(view, times[view]), view.rpartition(".")[2]
            shown = next(text for n in count(1) if (text := _numbered(short, n)) not in taken)
        taken.add(shown)
        yield NamedRule(mark.rule, name, shown, f"the limit on {mark.view}", mark)


def _numbered(view: str, number: int) -> str:
    return view if number == 1 else f"{view}#{number}"


def first_marks(marks: Iterable[Mark], start: int) -> tuple[list[Mark], dict[Mark, int]]:
    """Return the first mark of each rule, and the number of each mark's rule, from ``start`` on.

    A limit object on several views is one rule with one count. The first of the views gives it its name.
    """
    by_rule: dict[int, list[Mark]] = {}
    for mark in marks:
        by_rule.setdefault(id(mark.rule), []).append(mark)
    firsts = [min(group, key=lambda mark: mark.order) for group in by_rule.values()]
    return firsts, {mark: i for i, group in enumerate(by_rule.values(), start) for mark in group}


def checked_rules(rules: Iterable[Rule]) -> list[Rule]:
    """Return the rules as a list; ``ConfigError`` for anything else."""
    given: object = rules
    if not isinstance(given, Iterable) or isinstance(given, str | Mapping):
        fix = "For a file or a dictionary, write Limiter.from_settings(...)"
        raise ConfigError(f'expected a list of rules, as in [Rule(limits="5/minute")]; got {given!r}. {fix}', "rules")
    checked = list(rules)
    for i, rule in enumerate(checked):
        if not isinstance(rule, Rule):
            raise ConfigError(f'expected a Rule, as in [Rule(limits="5/minute")]; got {rule!r}', f"rules[{i}]")
    return checked


def check_unique(names: Iterable[tuple[str, str]]) -> None:
    """``ConfigError`` for a name that occurs twice. ``names`` are pairs of a name and its place."""
    seen: dict[str, str] = {}
    for name, place in names:
        if name in seen:
            settings = [each for each in (place, seen[name]) if each.startswith("rules[")]
            wrong, other = (place, seen[name]) if place in settings or not settings else (seen[name], place)
            message = f"the name {name!r} is already used by {other}. Give each rule a name of its own"
            raise ConfigError(message, f"{wrong}.name" if settings else wrong)
        seen[name] = place
