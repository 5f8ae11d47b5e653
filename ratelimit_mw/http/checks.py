"""``check`` and ``acheck``: decide a rule by its name, in the middle of a request. The same for all frameworks."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from ..decision import Verdict
from ..errors import ConfigError, MissingMiddlewareError, error_path, suggestion
from ..keys.features import checked_name, is_email
from ..keys.forms import normalized_email
from ..limiter.slots.queues import is_on_event_loop
from ..rules.names import printable
from ..rules.plan import Plan
from ..testmode import testmode
from .admission import Admission
from .body import UnreadBodyError
from .features import FeatureReader, aread, read
from .rules import DECIDED

_SIMILAR: Final = 0.75


class NamedRule:
    """A rule by its name, in one request. While limits are off, nothing is decided."""

    def __init__(
        self, native: Mapping[str, Any], rule: str, features: Mapping[str, Any] | None = None, costs: bool = True
    ) -> None:
        self._name = printable(rule)
        self._admission = _find_admission(native, self._name)
        if self._admission is not None:
            limits = self._admission.limits
            plan = limits.rules.plan_named(self._name, self._admission.lists)
            self._plan = plan if costs else plan.without_costs
            self._features = check_features("check", features or {}, self._plan, limits.reader, [rule])

    def check(self) -> Verdict:
        return Verdict() if self._admission is None else self._admission.check(self._plan, self._features)

    async def acheck(self) -> Verdict:
        if (admission := self._admission) is None:
            return Verdict()
        with self._naming_rule():
            return await admission.acheck(self._plan, self._features)

    def reset(self) -> None:
        if (admission := self._admission) is not None:
            features = read(admission.limits, self._plan, admission.now, self._features, admission.resolve)
            admission.limits.limiter.forget_key(admission.verdict, self._name, features, admission.limits.rules)

    async def areset(self) -> None:
        if (admission := self._admission) is not None:
            with self._naming_rule():
                features = await aread(admission.limits, self._plan, admission.now, self._features)
            await admission.limits.limiter.aforget_key(admission.verdict, self._name, features, admission.limits.rules)

    @contextmanager
    def _naming_rule(self) -> Iterator[None]:
        """Name the rule in the error of a body that was not read ahead. Only ASGI has such bodies."""
        try:
            yield
        except UnreadBodyError as error:
            raise ConfigError(error.message, f"check({self._name!r})") from None


def find_admissions(
    native: Mapping[str, Any], rules: Sequence[str], called: str
) -> list[tuple[Admission, Sequence[str]]]:
    """Return the admissions of a request whose limiters have the rules, each with its rules; none while limits are off.

    The admission that has decided a rule has it, else the innermost one with the rule. Without names, all admissions
    have all their rules.
    """
    admissions: Mapping[object, Admission] = native.get(DECIDED, {})
    if not admissions:
        if testmode.off:
            return []
        raise MissingMiddlewareError(f"{called}({', '.join(map(repr, rules))})", "reads rules of the middleware")
    by_rule: dict[str, Admission] = {}
    for admission in admissions.values():
        left = by_rule.keys() - {name for name, outer in by_rule.items() if outer.has_decided(name)}
        by_rule |= {name: admission for name in admission.limits.rules.by_name if name in left or name not in by_rule}
    if unknown := [name for name in rules if name not in by_rule]:
        name = unknown[0]
        raise ConfigError(f"unknown rule {name!r}{suggestion(name, by_rule)}", f"{called}({name!r})")
    found: dict[Admission, list[str]] = {}
    for name in rules:
        by_rule[name].limits.owner.named.add(name)
    for name in rules or by_rule:
        if by_rule[name].limits.rules.enabled and not testmode.off:
            found.setdefault(by_rule[name], []).append(name)
    return list(found.items())


def _find_admission(native: Mapping[str, Any], rule: str) -> Admission | None:
    """Return the admission of a request for a rule; None while limits are off."""
    return next((admission for admission, _ in find_admissions(native, [rule], "check")), None)


def check_features(
    called: str, given: Mapping[str, Any], plan: Plan, reader: FeatureReader, rules: Iterable[object]
) -> dict[str, Any]:
    """Return features by canonical name; ``ConfigError`` for one that a rule needs and that has another name here."""
    with error_path(f"{called}({', '.join(map(repr, rules))})"):
        return _checked(given, plan, reader)


def _checked(given: Mapping[str, Any], plan: Plan, reader: FeatureReader) -> dict[str, Any]:
    """Return features by canonical name; ``ConfigError`` for one that the rule needs and that has another name here."""
    features = {checked_name(name): value for name, value in given.items()}
    for name in plan.needs:
        close = [] if name in features else get_close_matches(name, features.keys() - {*plan.needs}, 1, _SIMILAR)
        if close or not (name in features or reader.provides(name)):
            hint = f"Did you mean {name}= for {close[0]}=?" if close else f"Pass {name}=VALUE"
            raise ConfigError(f"the rule uses the feature {name!r}, but nothing provides it. {hint}")
    return {
        name: normalized_email(value) if is_email(name) and isinstance(value, str) else value
        for name, value in features.items()
    }


class Check:
    """Decide a rule of the settings by its name, in a view.

    The features of its key are those of the request, and those that you pass. Of its ``match``, only features are
    compared. Headers and verdict of the request show the decision too. A rule that is only for ``check`` has
    ``match = {view = ""}``.

    Args:
        request: The request of the framework.
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

    def __init__(self, name: str, native_of: Callable[[Any], Mapping[str, Any]]) -> None:
        self.__name__ = name
        self._native_of = native_of

    def __call__(self, request: Any, rule: str, /, **features: Any) -> Verdict:
        return NamedRule(self._native_of(request), rule, features).check()

    def reset(self, request: Any, rule: str, /, **features: Any) -> None:
        """Reset the counts of this client under the rule. An unreachable store is logged.

        Args:
            request: The request of the framework.
            rule: The name of the rule.
            **features: Features that only your view knows.

        Raises:
            ConfigError: There is no such rule, or a feature of its key is missing.
        """
        NamedRule(self._native_of(request), rule, features, costs=False).reset()


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def needs_loop(
    method: Callable[_Parameters, Coroutine[Any, Any, _Result]],
) -> Callable[_Parameters, Coroutine[Any, Any, _Result]]:
    """Raise ``ConfigError`` for a call in a thread without an event loop, where nothing awaits it.

    Calls of Django have a blocking form, and an "a" before their name. ``async_to_sync`` makes them in such a thread.
    """

    @wraps(method)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> Coroutine[Any, Any, _Result]:
        name: str = getattr(args[0], "__name__", "")
        if not (name.startswith("a") or is_on_event_loop()):
            blocking = f"anyio.from_thread.run({name}, request, RULE)"
            raise ConfigError(f"the function that calls it is not async. Write async def, or call {blocking}", name)
        return method(*args, **kwargs)

    # asgiref asks whether a function is async, in a way that Python 3.12 has changed.
    getattr(inspect, "markcoroutinefunction", str)(call)
    call._is_coroutine = getattr(asyncio.coroutines, "_is_coroutine", None)  # type: ignore[attr-defined]
    return call


class AsyncCheck:
    """Async form of ``check``, for async views: ``await check(request, "forum-post", thread=7)``.

    Args:
        request: The request of the framework.
        rule: The name of the rule.
        **features: Features that only your view knows.

    Returns:
        The verdict on this rule.

    Raises:
        RateLimitExceeded: The rule rejects. The client receives a 429, unless your view catches the error.
        ConfigError: There is no such rule, or nothing provides a feature of its key.
        MissingMiddlewareError: No middleware handles the request.
    """

    def __init__(self, name: str, native_of: Callable[[Any], Mapping[str, Any]]) -> None:
        self.__name__ = name
        self._native_of = native_of

    @needs_loop
    async def __call__(self, request: Any, rule: str, /, **features: Any) -> Verdict:
        return await NamedRule(self._native_of(request), rule, features).acheck()

    @needs_loop
    async def reset(self, request: Any, rule: str, /, **features: Any) -> None:
        """Async form of ``Check.reset``: forget all that is counted under the key of the rule."""
        await NamedRule(self._native_of(request), rule, features, costs=False).areset()
