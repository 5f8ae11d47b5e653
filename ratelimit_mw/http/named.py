"""Decides rules by their names, in the middle of a request, and reads how much is left of them.

Each is one coroutine, which a thread runs and an event loop awaits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from typing import Any, Final, TypedDict, cast

from ..decision import Decision, Verdict
from ..errors import ConfigError, MissingMiddlewareError, error_path, suggestion
from ..keys.features import checked_name, is_email
from ..keys.forms import normalized_email
from ..rules.compiled import CompiledRule
from ..rules.plan import Plan
from ..stores.blocking import Call
from ..testmode import testmode
from .admission import Admission, admissions_of
from .body import UnreadBodyError
from .features import FeatureReader
from .limits import ADMISSION, HttpLimits

Values = Mapping[str, Any]
_SIMILAR: Final = 0.75


class LimitUsage(TypedDict):
    """The rest of one rule for a client: of the limit with the smallest share left, where the rule has several.

    ``limit`` and ``remaining`` are in units of the limit. ``reset_after`` is in seconds, until all of it is left again.
    """

    limit: int
    remaining: int
    reset_after: float


Usages = dict[str, LimitUsage]


def verdict_of(scope: Values) -> Verdict:
    """Return the verdict on a request, by its ASGI scope or WSGI environ."""
    innermost: Admission | None = scope.get(ADMISSION)
    if innermost is None and not testmode.off:
        raise MissingMiddlewareError("verdict()", "returns the verdict of the middleware")
    return Verdict() if innermost is None else innermost.shown


async def check(call: Call, scope: Values, rules: tuple[str, ...], features: Values) -> Verdict:
    for admission, _ in _find_admissions(scope, rules, "check"):
        plan = admission.limits.rules.plan_named(rules[0], admission.lists)
        with _placed("check", rules):
            given = _checked(features, plan, admission.limits.reader)
        with _naming("check", rules):
            return cast(Verdict, await call(admission, "check", plan, given))
    return Verdict()  # while limits are off


async def reset(call: Call, scope: Values, rules: tuple[str, ...], features: Values) -> None:
    for admission, _ in _find_admissions(scope, rules, "check"):
        limits = admission.limits
        plan = limits.rules.plan_named(rules[0], admission.lists).without_costs
        with _placed("check", rules):
            given = _checked(features, plan, limits.reader)
        with _naming("check", rules):
            read = await call(limits, "read", plan, admission.now, given, admission.resolve)
        await call(limits.limiter, "forget_key", admission.verdict, *rules, read, limits.rules)


async def usage(call: Call, scope: Values, rules: tuple[str, ...], features: Values) -> Usages:
    verdicts: list[Verdict] = []
    for admission, names in _find_admissions(scope, rules, "usage"):
        limits, request, found = admission.limits, admission.now, []
        compiled = (limits.rules.by_name[name] for name in names)
        shown = [rule for rule in compiled if not rule.shadow]
        if not rules:
            shown = [rule for rule in shown if limits.reader.can_read(rule.source.needs_without_cost, features)]
        with _placed("usage", rules):
            read = _checked(features, limits.peek_plan(tuple(shown)), limits.reader)
        for rule in shown:
            with _leaving_out(is_named=bool(rules)):
                read = await call(limits, "read", limits.peek_plan((rule,)), request, read, admission.resolve)
                found.append(rule)
        plans = _keyed_plans(limits, found, read)
        verdicts += [await call(limits.limiter, "decide", plan, read, 0, False) for plan in plans]
    return _in_order(verdicts, rules)


def _keyed_plans(limits: HttpLimits, rules: Iterable[CompiledRule], features: Values) -> list[Plan]:
    """Return the rules that have a key for these features. Those that a function may fail for are on their own."""
    keyed = [rule for rule in rules if rule.key_of(features) is not None]
    alone = [(rule,) for rule in keyed if rule.lookups]
    return list(map(limits.peek_plan, [tuple(rule for rule in keyed if not rule.lookups), *alone]))


def _in_order(verdicts: Iterable[Verdict], rules: Iterable[str]) -> Usages:
    found: dict[str, Decision] = {}
    for decision in (decision for verdict in verdicts for decision in verdict.decisions):
        other = found.get(decision.rule)
        if other is None or decision.remaining * other.limit < other.remaining * decision.limit:
            found[decision.rule] = decision
    shown = {rule: decision.hit[0].shown_rule for rule, decision in found.items()}  # as in the headers
    names = {rule: rule for rule in rules} or shown
    return {
        names[rule]: {"limit": of.limit, "remaining": of.remaining, "reset_after": of.reset_after}
        for rule in names
        if (of := found.get(rule)) is not None
    }


@contextmanager
def _leaving_out(is_named: bool) -> Iterator[None]:
    """Leave out a rule by a field of a body that was not read.

    Without names, leave out a rule by a feature whose function raises an error, too: it may need its own routes.
    """
    try:
        yield
    except UnreadBodyError:
        pass
    except ConfigError:
        raise
    except Exception:
        if is_named:
            raise


def _find_admissions(scope: Values, rules: tuple[str, ...], called: str) -> list[tuple[Admission, list[str]]]:
    """Return the admissions of a request whose limiters have the rules, each with its rules; none while limits are off.

    The admission that has decided a rule has it, else the innermost one with the rule. Without names, all admissions
    have all their rules.
    """
    admissions = admissions_of(scope)
    if not admissions:
        if testmode.off:
            return []
        raise MissingMiddlewareError(f"{called}({', '.join(map(repr, rules))})", "reads rules of the middleware")
    by_rule: dict[str, Admission] = {}
    for admission in admissions:
        left = by_rule.keys() - {name for name, outer in by_rule.items() if name in outer.decided_rules}
        by_rule |= {name: admission for name in admission.limits.rules.by_name if name in left or name not in by_rule}
    for name in rules:
        if name not in by_rule:
            raise ConfigError(f"unknown rule {name!r}{suggestion(name, by_rule)}", f"{called}({name!r})")
        by_rule[name].limits.named.add(name)
    found: dict[Admission, list[str]] = {}
    for name in rules or by_rule:
        if by_rule[name].limits.rules.enabled and not testmode.off:
            found.setdefault(by_rule[name], []).append(name)
    return list(found.items())


def _placed(called: str, rules: Iterable[str]) -> AbstractContextManager[None]:
    """Name the call in an error."""
    return error_path(f"{called}({', '.join(map(repr, rules))})")


@contextmanager
def _naming(called: str, rules: Iterable[str]) -> Iterator[None]:
    """Name the call in the error of a body that was not read ahead. Only ASGI has such bodies."""
    try:
        yield
    except UnreadBodyError:
        with _placed(called, rules):
            raise


def _checked(given: Values, plan: Plan, reader: FeatureReader) -> dict[str, Any]:
    """Return features by canonical name; ``ConfigError`` for one that a rule needs and that has another name here."""
    features = {checked_name(name): value for name, value in given.items()}
    for name in plan.required:
        close = [] if name in features else get_close_matches(name, features.keys() - {*plan.needs}, 1, _SIMILAR)
        if close or not (name in features or reader.provides(name)):
            hint = f"Did you mean {name}= for {close[0]}=?" if close else f"Pass {name}=VALUE"
            raise ConfigError(f"the rule uses the feature {name!r}, but nothing provides it. {hint}")
    return {
        name: normalized_email(value) if is_email(name) and isinstance(value, str) else value
        for name, value in features.items()
    }
