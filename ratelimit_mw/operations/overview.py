"""The rules, and the routes that they apply to, in words and as JSON, for commands and the dashboard. Pure."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Any, Final

from ..algorithms import name_of_spec
from ..http.request import Request
from ..http.routes import Route
from ..keys.features import Features
from ..keys.forms import normalize_host
from ..quota import Quota
from ..rules.compiled import CompiledRule
from ..rules.marks import Mark, ViewMarks
from ..rules.match import Match
from ..rules.named_rules import Amendment
from ..rules.names import name_of
from ..rules.routed import PathPatterns
from ..rules.ruleset import RuleSet

_SHOWN_VALUES: Final = 3
_COLUMNS: Final = {"name", "match", "key", "limits", "per_key", "per", "schedule", "algorithm", "mode", "cost"}
_SHOWN: Final = {*_COLUMNS, "source", "applies_to", "place"}
"""The fields of a rule as JSON that are in a column of their own. The others are options as the settings have them."""
_IN_EFFECT: Final = {*_COLUMNS, "timezone", "consistency", "lease"}
"""The fields that may differ from the option of the same name."""
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
        self._places, self._views = defaultdict[CompiledRule, list[str]](list), defaultdict[CompiledRule, set[str]](set)
        for mark in rules.marks:  # several views may have one limit
            self._places[rules.rule_of(mark)].append(mark.place.rpartition(" at ")[2])
            self._views[rules.rule_of(mark)].add(mark.view)
        for route in routes or ():
            self._add(route)

    def _add(self, route: Route) -> None:
        views = route.views.items()
        for mark in dict.fromkeys(mark for _, view in views for mark in view.all_marks):
            rule = self._rules.rule_of(mark)
            limited = [(method, view) for method, view in views if mark in view.all_marks]
            methods = [method for method, view in limited if not view.is_exempt_from(rule.name, [mark])]
            is_limited = methods and not route.lacks_parameter(rule.source)
            self._routes.setdefault(rule, []).extend([route.describe(methods)] if is_limited else [])
            self._marks.setdefault(rule, []).append(mark)
        if any(view.is_static for _, view in views):
            self.exempt.append(f"{route.endpoint} from every rule without match.path and match.view")
        exempt = defaultdict[str, list[str]](list)
        for method, view in views:
            if view.exempt is not None:
                exempt[_exemption(view)].append(method)
        self.exempt += [f"{route.describe(methods)} from {rules}" for rules, methods in exempt.items()]

    def as_json(self, rule: CompiledRule) -> dict[str, Any]:
        """Return a rule for programs. Options that have no column of a table are there when the rule has them.

        A place is a decorator, a file and line of the settings, or both.
        """
        source, places = rule.source, filter(None, dict.fromkeys([*self._places[rule], *rule.lines]))
        tables, zone = {name: _texts_of(table) for name, table in source.tables}, source.options["timezone"]
        per_key = tables.pop(None, None)
        return {
            "name": rule.name,
            "match": _match(source.matches),
            "key": ["|".join(names) for names in source.entries],
            "limits": function_name(source.function) or [str(limit.quota) for limit in rule.limits],
            **({"per_key": per_key} if per_key else {}),
            **({"per": tables} if tables else {}),
            **({"schedule": _texts_of(source.schedule.limits)} if source.schedule else {}),
            "algorithm": algorithm_of(rule),
            "mode": source.mode,
            "cost": function_name(source.options["cost"]) or source.options["cost"],
            **{name: _plain(value) for name, value in source.set_options.items() if name not in _IN_EFFECT},
            **({"timezone": zone} if source.schedule or source.has_calendar else {}),
            **({"consistency": "leased", "lease": f"{source.lease_percent}%"} if source.lease_percent else {}),
            **({} if self.is_file else {"source": self._source(rule)}),
            **({} if self.is_file and rule not in self._views else {"applies_to": self._applies_to(rule)}),
            "place": ", ".join(places),
        }

    def notes(self) -> Iterator[str]:
        yield from (f"exempt: {exemption}" for exemption in self.exempt)
        for kind, others in (("allow", "the deny list and all rules"), ("deny", "all rules")):
            if names := self._rules.lists.names(kind):
                yield f"{kind} list: {', '.join(names)}; takes precedence over {others}"
        yield "All rules that match a request apply together: those of the settings and those of decorators."
        yield "A rule with overrides changes a decorator's rule. Exemptions take precedence over the rules around them."

    def why_not(self, rule: CompiledRule, request: Request, features: Features) -> str:
        """Return the first reason why a rule does not apply to a request with these features, "" for none."""
        to, method = request.to, request.method
        match, marks, view = rule.source.matches, set(self._marks.get(rule, ())), to.marks or ViewMarks()
        if not marks.isdisjoint(view.messages):
            return "it limits the messages of the WebSocket"
        if marks and marks.isdisjoint(view.marks):
            return f"it is on {', '.join(dict.fromkeys(self._routes[rule]))}"
        if view.is_exempt_from(rule.name, marks):
            return "the view is exempt"
        if view.is_static and not match.route_field:
            return "the route takes only rules with match.path or match.view"
        patterns = PathPatterns(enumerate(match.paths))
        if match.paths and not patterns.match(request.sent_path, to, lambda: request.path_params):
            return f"path: not {_either(match.paths)}"
        if not match.takes_view(to.view):
            view_name = to.view or ("unknown" if to.endpoint is None else "without a name")
            return f"view: {view_name}, not {_either(name or repr(name) for name in match.views)}"
        if not match.takes_method(method, view.answers_options and method == "OPTIONS"):
            expected = f"not {_either(sorted(match.methods))}" if match.methods else "the framework responds to OPTIONS"
            return f"method: {expected}"
        if not match.takes_host(normalize_host(features["host"])):
            return f"host: not {_either(match.hosts)}"
        features = rule.captures.add(features)
        for part, values in match.mismatches(features):
            value, expected = part.value(features), f"{'in ' * (part == 'ip')}{_either(_texts(values))}"
            return f"feature: {part} is {'missing' if value is None else value}, not {expected}"
        return ""

    def _source(self, rule: CompiledRule) -> str:
        """Where a rule comes from: the settings, a decorator or a throttle, or both."""
        if (marks := self._marks.get(rule)) is None:
            return "settings"
        source = marks[0].source
        return f"{source} and settings" if rule.name in self._amendments else source

    def _applies_to(self, rule: CompiledRule) -> list[str]:
        """Return the requests that a rule applies to: those of its views, or one condition per line."""
        match = _match(rule.source.matches)
        if rule not in self._routes:
            return sorted(self._views[rule]) if rule in self._views else _conditions(match)
        routes = ", ".join(dict.fromkeys(self._routes[rule]))
        others = [f"when {name} is {_either(_texts(values))}" for name, values in rule.source.matches.features]
        return [" ".join(filter(None, ("/".join(match["methods"]), routes, *others)))]


def row_of(rule: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the lines of each column of a table, from a rule as JSON. Options without a column are at the mode."""
    options = (f"{name} = {json.dumps(value, default=str)}" for name, value in rule.items() if name not in _SHOWN)
    limits = [rule["limits"]] if isinstance(rule["limits"], str) else rule["limits"]  # a text is a function
    return {
        "rule": [rule["name"]],
        **({"source": [rule["source"]]} if "source" in rule else {}),
        "applies to": rule.get("applies_to") or _conditions(rule["match"]),
        "key": [" + ".join(rule["key"]) or "one for all clients"],
        "limits": [*limits, *_other_limits(rule)],
        "algorithm": [rule["algorithm"]],
        "mode": [rule["mode"], *options],
        "cost": [str(rule["cost"])],
    }


def _other_limits(rule: Mapping[str, Any]) -> Iterator[str]:
    for name, table in {"key": rule.get("per_key", {}), **rule.get("per", {})}.items():
        yield from (f"{name} {value}: {_line(quotas)}" for value, quotas in islice(table.items(), _SHOWN_VALUES))
        if len(table) > _SHOWN_VALUES:
            yield f"and {len(table) - _SHOWN_VALUES} more"
    yield from (f"{time}: {_line(quotas)}" for time, quotas in rule.get("schedule", {}).items())


def _conditions(match: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the conditions on requests, one per line."""
    place = f"{'/'.join(match['methods'])} {_either(match['path'])}".strip()
    others = [
        f"{name} {_either(value or repr(value) for value in values)}"
        for name, values in match.items()
        if values and name not in ("methods", "path")
    ]
    return list(filter(None, [place, *others])) or ["all"]


def describe_amendments(amendments: Mapping[str, Amendment]) -> Iterator[str]:
    """Yield a note for each rule of the settings that changes a decorator's, for a command without the application."""
    for name, (index, _) in amendments.items():
        yield f"rules[{index}] is not shown: it changes the rule {name!r} of a decorator. Use check --app"


def algorithm_of(rule: CompiledRule) -> str:
    """Return the algorithm as the rule names it, with its variant, such as "leaky-bucket (queue)"."""
    if not rule.limits:  # those of a function
        return str(name_of_spec(rule.source.algorithm))
    limit = rule.limits[0]
    is_own = limit.quota.concurrent or limit.quota.calendar
    name = limit.algorithm.name if is_own else name_of_spec(rule.source.algorithm)
    return f"{name} ({limit.algorithm.variant})" if limit.algorithm.variant else name


def _exemption(view: ViewMarks) -> str:
    """Return the rules that an exempt view is exempt from, in words."""
    return ", ".join(view.exempt or ()) or ("every other rule" if view.inside else "every rule")


def function_name(limits: object) -> str:
    """Return the function that returns limits, as text; "" for limits that are not from a function."""
    return f"{name_of(limits) or repr(limits)}()" if callable(limits) else ""


def _match(match: Match) -> dict[str, list[str]]:
    return {
        "path": list(match.paths),
        "methods": sorted(match.methods),
        "host": list(match.hosts),
        **({"view": list(match.views)} if match.views else {}),
        **{name: _texts(values) for name, values in match.features},
    }


def _texts_of(table: Mapping[str, Iterable[Quota]]) -> dict[str, list[str]]:
    return {value: list(map(str, quotas)) for value, quotas in table.items()}


def _texts(values: Iterable[object]) -> list[str]:
    return sorted(map(str, values))


def _plain(value: Any) -> Any:
    """Return the value of an option as JSON has it: Python may have a set of statuses."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return sorted(value, key=str) if isinstance(value, Set) else value
