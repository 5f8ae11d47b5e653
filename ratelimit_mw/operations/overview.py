"""The rules, and the routes that they apply to, in words and as JSON, for commands and the dashboard. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from ..algorithms import name_of_spec
from ..decision import BanTerms, Limit
from ..http.routes import Route
from ..keys.features import Features
from ..keys.forms import normalize_host
from ..quota import Quota, format_duration
from ..rules.compiled import CompiledRule
from ..rules.marks import Destination, Mark, ViewMarks
from ..rules.match import Match
from ..rules.named_rules import Amendment
from ..rules.names import name_of
from ..rules.routed import PathPatterns
from ..rules.ruleset import RuleSet
from ..rules.values import REQUESTS, items_of

_SHOWN_VALUES: Final = 3
_OTHERS: Final = (
    *("on_store_error", "wait", "max_waiting", "hold_at_most", "limits_ttl", "unrouted"),
    *("reserve", "target", "tune"),
)
_either: Final = " or ".join
_line: Final = "; ".join


class Overview:
    """The rules of a limiter for an application with these routes, or of a settings file when ``routes`` is None."""

    def __init__(
        self, rules: RuleSet, amendments: Mapping[str, Amendment], routes: Iterable[Route] | None = None
    ) -> None:
        self.is_file = routes is None
        self.exempt = [f"{path} from every rule" for path in rules.lists.exempt]
        self._rules = rules
        self._amendments = amendments
        self._routes: dict[CompiledRule, list[str]] = {}
        self._marks: dict[CompiledRule, list[Mark]] = {}
        for route in routes or ():
            self._add(route)

    def _add(self, route: Route) -> None:
        views = route.views.items()
        for mark in dict.fromkeys(mark for _, view in views for mark in view.every):
            rule = self._rules.rule_of(mark)
            limited = [(method, view) for method, view in views if mark in view.every]
            methods = [method for method, view in limited if not view.is_exempt_from(rule.name, [mark])]
            is_limited = methods and not route.lacks_parameter(rule.source)
            self._routes.setdefault(rule, []).extend([route.describe(methods)] if is_limited else [])
            self._marks.setdefault(rule, []).append(mark)
        if any(view.is_static for _, view in views):
            self.exempt.append(f"{route.template} from every rule without match.path and match.view")
        for exempt in dict.fromkeys(_exemption(view) for _, view in views if view.exempt is not None):
            methods = [method for method, view in views if _exemption(view) == exempt]
            self.exempt.append(f"{route.describe(methods)} from {exempt}")

    def row(self, rule: CompiledRule) -> dict[str, list[str]]:
        """The lines of each column in a table of rules."""
        return {
            "rule": [rule.name],
            **({} if self.is_file else {"source": [self._source(rule)]}),
            "applies to": self._applies_to(rule),
            "key": [" + ".join("|".join(names) for names in rule.source.entries) or "one for all clients"],
            "limits": _limits(rule),
            "algorithm": [algorithm_of(rule)],
            "mode": modes_of(rule),
            "cost": [cost_of(rule)],
        }

    def as_json(self, rule: CompiledRule) -> dict[str, Any]:
        """A rule for programs. It has most options only when the rule has them."""
        source = rule.source
        tables, zone = {name: _texts_of(table) for name, table in source.tables}, source.options["timezone"]
        per_key = tables.pop("", None)
        return {
            "name": rule.name,
            "match": _match(source.matches),
            "key": ["|".join(names) for names in source.entries],
            "limits": function_name(source.function) or [str(limit.quota) for limit in rule.limits],
            **({"per_key": per_key} if per_key else {}),
            **({"per": tables} if tables else {}),
            **({"schedule": _texts_of(source.schedule.limits)} if source.schedule else {}),
            **({"timezone": zone} if source.schedule or source.has_calendar else {}),
            "algorithm": algorithm_of(rule),
            "mode": source.mode,
            **consistency_of(rule),
            "cost": function_name(source.options["cost"]) or source.options["cost"],
            **({"unit": source.unit} if source.unit != REQUESTS else {}),
            "when_missing": source.when_missing,
            "count_when": _outcomes_json(source.options["count_when"]),
            **({"count_unless": _outcomes_json(unless)} if (unless := source.options["count_unless"]) else {}),
            **({"ban": source.options["ban"]} if source.ban else {}),
            **_others(rule),
            **({} if self.is_file else {"source": self._source(rule), "applies_to": self._applies_to(rule)}),
        }

    def notes(self) -> Iterator[str]:
        yield from (f"exempt: {exemption}" for exemption in self.exempt)
        for kind, others in (("allow", "the deny list and all rules"), ("deny", "all rules")):
            if names := self._rules.lists.names(kind):
                yield f"{kind} list: {', '.join(names)}; takes precedence over {others}"
        yield "All rules that match a request apply together: those of the settings and those of decorators."
        yield "A rule with overrides changes a decorator's rule. Exemptions take precedence over the rules around them."

    def why_not(
        self,
        rule: CompiledRule,
        method: str,
        path: str,
        host: Any,
        to: Destination,
        params: Mapping[str, Any],
        features: Features,
    ) -> str:
        """The first reason why a rule does not apply, "" for none."""
        match, marks, view = rule.source.matches, set(self._marks.get(rule, ())), to.marks or ViewMarks()
        if not marks.isdisjoint(view.messages):
            return "it limits the messages of the WebSocket"
        if marks and marks.isdisjoint(view.marks):
            return f"it is on {', '.join(dict.fromkeys(self._routes[rule]))}"
        if view.is_exempt_from(rule.name, marks):
            return "the view is exempt"
        if view.is_static and not match.place:
            return "the route takes only rules with match.path or match.view"
        if match.paths and not PathPatterns(enumerate(match.paths)).match(path, to, lambda: params):
            return f"path: not {_either(match.paths)}"
        if not match.takes_view(to.view):
            view_name = to.view or ("unknown" if to.endpoint is None else "without a name")
            return f"view: {view_name}, not {_either(name or repr(name) for name in match.views)}"
        if not match.takes_method(method, view.answers_options and method == "OPTIONS"):
            expected = f"not {_either(sorted(match.methods))}" if match.methods else "the framework responds to OPTIONS"
            return f"method: {expected}"
        if not match.takes_host(normalize_host(host)):
            return f"host: not {_either(match.hosts)}"
        features = rule.captures.add(features)
        for part, values in match.missed(features):
            value, expected = part.value(features), f"{'in ' * (part.text == 'ip')}{_either(_texts(values))}"
            return f"feature: {part.text} is {'missing' if value is None else value}, not {expected}"
        return ""

    def _source(self, rule: CompiledRule) -> str:
        """Where a rule comes from: the settings, a decorator or a throttle, or both."""
        if (marks := self._marks.get(rule)) is None:
            return "settings"
        source = marks[0].source
        return f"{source} and settings" if rule.name in self._amendments else source

    def _applies_to(self, rule: CompiledRule) -> list[str]:
        """The requests that a rule applies to: those of its views, or one condition per line."""
        matches = _match(rule.source.matches)
        methods, paths = "/".join(matches.pop("methods")), _either(matches.pop("path"))
        if rule in self._routes:
            routes = ", ".join(dict.fromkeys(self._routes[rule]))
            return [" ".join(filter(None, (methods, routes, _conditions(rule))))]
        conditions = [
            f"{name} {_either(value or repr(value) for value in values)}" for name, values in matches.items() if values
        ]
        return list(filter(None, [f"{methods} {paths}".strip(), *conditions])) or ["all"]


def describe_amendments(amendments: Mapping[str, Amendment]) -> Iterator[str]:
    """A note for each rule of the settings that changes a decorator's rule, for a command without the application."""
    for name, (index, _) in amendments.items():
        yield f"rules[{index}] is not shown: it changes the rule {name!r} of a decorator. Use check --app"


def algorithm_of(rule: CompiledRule) -> str:
    """The algorithm as the rule names it, with its variant, such as "leaky-bucket (queue)"."""
    if not rule.limits:  # those of a function
        return str(name_of_spec(rule.source.algorithm))
    limit = rule.limits[0]
    is_own = limit.quota.concurrent or limit.quota.calendar
    name = limit.algorithm.name if is_own else name_of_spec(rule.source.algorithm)
    return f"{name} ({limit.algorithm.variant})" if limit.algorithm.variant else name


def consistency_of(rule: CompiledRule) -> dict[str, str]:
    """How a rule counts, for programs, unless it asks the store each time."""
    consistency, percent = rule.source.consistency, rule.source.lease_percent
    shown = {} if consistency == "exact" else {"consistency": consistency}
    return shown | ({"lease": f"{percent}%"} if percent else {})


def modes_of(rule: CompiledRule) -> list[str]:
    """The lines of a table that show the mode, how the rule counts, and its options without a column."""
    others = [f"{name} = {json.dumps(value)}" for name, value in _others(rule).items()]
    return [rule.source.mode, *filter(None, [" ".join(consistency_of(rule).values())]), *others]


def _others(rule: CompiledRule) -> dict[str, Any]:
    """The options that have no form of their own here, unless they have their default."""
    return {name: value for name, value in rule.source.set_options.items() if name in _OTHERS}


def cost_of(rule: CompiledRule) -> str:
    options = rule.source.options
    tables = (("if", options["count_when"]), ("unless", options["count_unless"]))
    return " ".join(
        [
            function_name(options["cost"]) or str(options["cost"]),
            *(f"{word} {_either(_outcome_texts(table))}" for word, table in tables if table),
        ]
    )


def _exemption(view: ViewMarks) -> str:
    """The rules that a view is exempt from, in words."""
    return ", ".join(view.exempt or ()) or ("every other rule" if view.inside else "every rule")


def _limits(rule: CompiledRule) -> list[str]:
    options = rule.source.options
    lines = [function_name(rule.source.function)] if not rule.limits else list(map(_limit, rule.limits))
    for name, table in rule.source.tables:
        shown = islice(table.items(), _SHOWN_VALUES)
        lines += [f"{name or 'key'} {value}: {_line(map(str, quotas))}" for value, quotas in shown]
        lines += [f"and {len(table) - _SHOWN_VALUES} more"] if len(table) > _SHOWN_VALUES else []
    for text, limits in rule.ranges.items():
        lines.append(f"{text} ({options['timezone']}): {_line(map(str, (limit.quota for limit in limits)))}")
    return [*lines, *([ban_text(rule.source.ban)] if rule.source.ban else [])]


def _limit(limit: Limit) -> str:
    return f"{limit.text} ({limit.quota.zone})" if limit.quota.calendar else limit.text


def ban_text(ban: BanTerms) -> str:
    """Return a ban in words.

    >>> ban_text(BanTerms(10, 600_000_000, 3_600_000_000, 2, 86_400_000_000))
    'ban after 10 rejections in 10m, for 1h; each ban 2 times as long as the last, at most 1d'
    """
    grows = f"; each ban {ban.growth} times as long as the last, at most {format_duration(ban.longest)}"
    rejections = f"{ban.after} rejection{'s' * (ban.after > 1)} in {format_duration(ban.within)}"
    has_growth = ban.growth > 1 and ban.longest > ban.first
    return f"ban after {rejections}, for {format_duration(ban.first)}{grows * has_growth}"


def function_name(limits: object) -> str:
    """The function that returns limits, as text; "" for limits that are not from a function."""
    return f"{name_of(limits) or repr(limits)}()" if callable(limits) else ""


def _match(match: Match) -> dict[str, list[str]]:
    return {
        "path": list(match.paths),
        "methods": sorted(match.methods),
        "host": list(match.hosts),
        **({"view": list(match.views)} if match.views else {}),
        **{name: _texts(values) for name, values in match.features},
    }


def _conditions(rule: CompiledRule) -> str:
    """The conditions on features, which depend on a real request."""
    return " ".join(f"when {name} is {_either(_texts(values))}" for name, values in rule.source.matches.features)


def _outcomes_json(table: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """An option with its statuses as a list."""
    return table and {**table, **({"status": sorted(items_of(table["status"]), key=str)} if "status" in table else {})}


def _outcome_texts(table: Mapping[str, Any]) -> list[str]:
    """Return the statuses of an option as texts, and "marked" where views mark what counts."""
    return [*sorted(map(str, items_of(table.get("status", ())))), *(["marked"] if table.get("marked") else [])]


def _texts_of(table: Mapping[str, Iterable[Quota]]) -> dict[str, list[str]]:
    return {value: list(map(str, quotas)) for value, quotas in table.items()}


def _texts(values: Iterable[object]) -> list[str]:
    return sorted(map(str, values))
