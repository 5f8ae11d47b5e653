"""The functions ``check``, ``usage`` and ``verdict`` of all frameworks, each of which only finds its request.

Each is one coroutine, which a thread runs and an event loop awaits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from difflib import get_close_matches
from typing import Any, Final, Generic, ParamSpec, TypedDict, TypeVar, cast

from ..decision import Decision, Verdict
from ..errors import ConfigError, MissingMiddlewareError, error_path, suggestion
from ..keys.features import checked_name
from ..keys.forms import counted_value
from ..rules.names import ascii_name
from ..rules.plan import Plan
from ..runtime.blocking import Call, async_call, blocking_call, is_on_event_loop, run_blocking
from ..testmode import testmode
from .admission import ADMISSION, Admission
from .features import FeatureReader

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
V = TypeVar("V")
N = TypeVar("N")
Work = Coroutine[Any, Any, T]
Values = Mapping[str, Any]
Asked = tuple[Any, tuple[str, ...], Values]
"""A request, names of rules, and features."""
NativeOf = Callable[[Any], Values]
"""Returns the ASGI scope or the WSGI environ of a request: its ``native``, as in ``Request``."""
_SIMILAR: Final = 0.75


class LimitUsage(TypedDict):
    """The rest of one rule for a client: of the limit with the smallest share left, where the rule has several.

    ``limit`` and ``remaining`` are in units of the limit. ``reset_after`` is in seconds, until all of it is left again.
    """

    limit: int
    remaining: int
    reset_after: float


Usages = dict[str, LimitUsage]


class InView(Generic[P, V]):
    """A public function for views. ``work`` does its work, and documents it.

    ``find`` has its arguments, and ``run`` runs the coroutine or returns it.
    """

    def __init__(
        self,
        work: Callable[..., Work[Any]],
        find: Callable[P, Asked],
        native_of: NativeOf,
        call: Call,
        run: Callable[[Any], Any],
    ) -> None:
        self.__name__, self.__doc__ = work.__name__, work.__doc__
        self.__signature__ = inspect.signature(find).replace(return_annotation=inspect.Signature.empty)
        self._work, self._find, self._native_of, self._call, self._run = work, find, native_of, call, run

    def __call__(self, *request_and_rules: P.args, **features: P.kwargs) -> V:
        request, rules, given = self._find(*request_and_rules, **features)
        work = self._work(self._call, self._native_of(request), tuple(map(ascii_name, rules)), given)
        return cast(V, self._run(work))


class Check(InView[P, V], Generic[P, V, N]):
    """The function ``check``, with ``check.reset``."""

    reset: InView[P, N]


def ask_rule(request: Any, rule: str, /, **features: Any) -> Asked:
    """Return the arguments of ``check``, where the request is one of them."""
    return request, (rule,), features


def ask_rules(request: Any, /, *rules: str, **features: Any) -> Asked:
    """Return the arguments of ``usage``, where the request is one of them."""
    return request, rules, features


def ask(request: Any, /) -> Asked:
    """Return the argument of ``verdict``, where it is the request."""
    return request, (), {}


def in_threads(
    rule: Callable[P, Asked], rules: Callable[Q, Asked], native_of: NativeOf
) -> tuple[Check[P, Verdict, None], InView[Q, Usages]]:
    """Return ``check`` and ``usage`` for views that wait in their thread."""
    return _functions(rule, rules, native_of, blocking_call, run_blocking)


def on_loops(
    rule: Callable[P, Asked], rules: Callable[Q, Asked], native_of: NativeOf, start: Callable[[Any], Any] | None = None
) -> tuple[Check[P, Work[Verdict], Work[None]], InView[Q, Work[Usages]]]:
    """Return ``check`` and ``usage`` for async views. ``start`` returns the coroutine that the view awaits."""
    return _functions(rule, rules, native_of, async_call, start or _require_loop)


def _functions(rule: Any, rules: Any, *how: Any) -> tuple[Any, Any]:
    checking: Check[Any, Any, Any] = Check(check, rule, *how)
    checking.reset = InView(reset, rule, *how)
    return checking, InView(usage, rules, *how)


def _require_loop(work: Any) -> Any:
    """Raise ``ConfigError`` in a thread without an event loop, where nothing awaits the coroutine."""
    if not is_on_event_loop():
        work.close()
        blocking = f"anyio.from_thread.run({work.__name__}, request, RULE)"
        raise ConfigError(
            f"the function that calls it is not async. Write async def, or call {blocking}", work.__name__
        )
    return work


def verdict_by(request: Callable[P, Asked], native_of: NativeOf) -> InView[P, Verdict]:
    """Return the function ``verdict``, which waits for nothing."""
    return InView(verdict, request, native_of, blocking_call, run_blocking)


async def verdict(_call: Call, native: Values, _rules: tuple[str, ...], _features: Values) -> Verdict:
    """Return the verdict of the middleware on a request, with what your view has decided since.

    Args:
        request: The request of the framework. Flask finds it without this argument.

    Returns:
        The verdict. It has no decisions when no rule applies, or while limits are off.

    Raises:
        MissingMiddlewareError: No middleware handles the request.

    Example:
        verdict(request)["tokens"].settle(150)
    """
    innermost: Admission | None = native.get(ADMISSION)
    if innermost is None and not testmode.off:
        raise MissingMiddlewareError("verdict()", "returns the verdict of the middleware")
    return Verdict() if innermost is None else innermost.verdict


async def check(call: Call, native: Values, rules: tuple[str, ...], features: Values) -> Verdict:
    """Decide a rule of the settings by its name, in a view.

    The features of its key are those of the request, and those that you pass. Of its ``match``, only features are
    compared. Headers and verdict of the request show the decision too. A rule that is only for ``check`` has
    ``match = {view = ""}``. Await it in Starlette and FastAPI, and as ``acheck`` of Django.

    Args:
        request: The request of the framework. Flask finds it without this argument.
        rule: The name of the rule.
        **features: Features that only your view knows, such as ``email="ann@example.com"``.

    Returns:
        The verdict on this rule.

    Raises:
        RateLimitExceeded: The rule rejects. The client receives a 429, unless your view catches the error.
        ConfigError: There is no such rule, or nothing provides a feature of its key.
        MissingMiddlewareError: No middleware handles the request.

    Example:
        check(request, "forum-post", thread=7)
    """
    if (admission := _find_admission(native, rules, "check")) is None:
        return Verdict()
    plan = admission.limits.rules.plan_for_rule(rules[0], admission.lists)
    with _placed("check", rules):
        given = _checked(features, plan, admission.limits.reader)
        verdict: Verdict = await call(admission, "decide", plan, given)
    if not verdict.allowed:
        raise admission.error(verdict)
    return verdict


async def reset(call: Call, native: Values, rules: tuple[str, ...], features: Values) -> None:
    """Reset the counts of this client under the rule. An unreachable store is logged.

    Args:
        request: The request of the framework. Flask finds it without this argument.
        rule: The name of the rule.
        **features: Features that only your view knows.

    Raises:
        ConfigError: There is no such rule, or a feature of its key is missing.
    """
    if (admission := _find_admission(native, rules, "check")) is None:
        return
    limits = admission.limits
    plan = limits.rules.plan_for_rule(rules[0], admission.lists).without_costs
    with _placed("check", rules):
        given = _checked(features, plan, limits.reader)
        read = await call(limits, "read", plan, admission.current_request, given)
    await call(limits.settlement, "forget_key", admission.verdict, *rules, read, limits.rules)


async def usage(call: Call, native: Values, rules: tuple[str, ...], features: Values) -> Usages:
    """Return how much is left of each rule for the client of the request. Consume nothing.

    Await it in Starlette and FastAPI, and as ``ausage`` of Django.

    Args:
        request: The request of the framework. Flask finds it without this argument.
        *rules: The names of rules, those of decorators too. Without any: all rules that have a key in this request.
        **features: Features that only your view knows, such as ``email="ann@example.com"``.

    Returns:
        By rule, its ``limit``, its ``remaining`` amount, and ``reset_after``, the seconds until all is left again.
        Without names of rules, a rule has the name that clients see in the headers.
        A rule without a key in this request, or in shadow mode, is not included. If the function of a rule's limits
        fails, the result has only that rule.

    Raises:
        ConfigError: There is no such rule, or nothing provides a feature of its key.
        MissingMiddlewareError: No middleware handles the request.

    Example:
        usage(request, "tokens")["tokens"]["remaining"]
    """
    if (admission := _find_admission(native, rules, "usage")) is None:
        return {}
    limits = admission.limits
    by_name = limits.rules.by_name
    shown = [by_name[name] for name in rules or by_name if not by_name[name].shadow]
    if not rules:
        shown = [rule for rule in shown if limits.reader.can_read(rule.source.needs_without_cost, features)]
    plan = limits.peek_plan(tuple(shown))
    with _placed("usage", rules):
        read = await call(limits, "read", plan, admission.current_request, _checked(features, plan, limits.reader))
    keyed = limits.peek_plan(tuple(rule for rule in shown if rule.key_of(read) is not None))
    return _usages_of(await call(limits.limiter, "decide", keyed, read, 0, False), rules)


def _usages_of(verdict: Verdict, rules: Iterable[str]) -> Usages:
    """Return the usage of each rule by its name, or without ``rules`` of all rules by their names in the headers."""
    scarcest: dict[str, Decision] = {}
    for decision in (each for each in verdict.decisions if not each.source.sheds):
        other = scarcest.get(decision.rule)
        if other is None or decision.remaining * other.limit < other.remaining * decision.limit:
            scarcest[decision.rule] = decision
    names = {rule: rule for rule in rules} or {rule: it.hit[0].shown_rule for rule, it in scarcest.items()}
    return {
        name: {"limit": it.limit, "remaining": it.remaining, "reset_after": it.reset_after}
        for rule, name in names.items()
        if (it := scarcest.get(rule)) is not None
    }


def _find_admission(native: Values, rules: tuple[str, ...], called: str) -> Admission | None:
    """Return the admission of the innermost middleware, whose limiter has the rules; None while limits are off."""
    admission: Admission | None = native.get(ADMISSION)
    if admission is None:
        if testmode.off:
            return None
        raise MissingMiddlewareError(f"{called}({', '.join(map(repr, rules))})", "reads rules of the middleware")
    limits = admission.limits
    for name in rules:
        if name not in limits.rules.by_name:
            raise ConfigError(f"unknown rule {name!r}{suggestion(name, limits.rules.by_name)}", f"{called}({name!r})")
        limits.named_in_code.add(name)
    return admission if limits.rules.enabled and not testmode.off else None


def _placed(called: str, rules: Iterable[str]) -> AbstractContextManager[None]:
    """Name the call in an error."""
    return error_path(f"{called}({', '.join(map(repr, rules))})")


def _checked(given: Values, plan: Plan, reader: FeatureReader) -> dict[str, Any]:
    """Return features by canonical name; ``ConfigError`` for one that a rule needs and that has another name here."""
    features = {checked_name(name): value for name, value in given.items()}
    for name in plan.needs:
        close = [] if name in features else get_close_matches(name, features.keys() - {*plan.needs}, 1, _SIMILAR)
        if close or not (name in features or reader.provides(name)):
            hint = f"Did you mean {name}= for {close[0]}=?" if close else f"Pass {name}=VALUE"
            raise ConfigError(f"the rule uses the feature {name!r}, but nothing provides it. {hint}")
    return {name: counted_value(name, value) for name, value in features.items()}
