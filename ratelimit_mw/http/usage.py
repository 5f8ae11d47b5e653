"""``usage`` and ``ausage``: how much is left for the client of a request. The same for all frameworks."""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypedDict

from ..decision import Decision, Verdict
from ..errors import ConfigError
from ..rules.compiled import CompiledRule
from ..rules.names import printable
from ..rules.plan import Plan
from .admission import Admission
from .body import UnreadBodyError
from .checks import check_features, find_admissions, needs_loop
from .features import aread, read
from .rules import HttpRules


class LimitUsage(TypedDict):
    """The rest of one rule for a client: of the limit with the smallest share left, where the rule has several.

    ``limit`` and ``remaining`` are in units of the limit. ``reset_after`` is in seconds, until all of it is left again.
    """

    limit: int
    remaining: int
    reset_after: float


NO_STORE = {"Cache-Control": "no-store"}
"""The headers of a response with usage, which differs from client to client."""


class ClientUsage:
    """The usage of some rules in one request; of all rules that have a key in this request, where none is named."""

    def __init__(self, native: Mapping[str, Any], rules: Iterable[str], features: Mapping[str, Any]) -> None:
        self._order = [printable(rule) for rule in rules]
        self._asked: list[tuple[Admission, tuple[CompiledRule, ...], dict[str, Any]]] = []
        for admission, names in find_admissions(native, self._order, "usage"):
            limits = admission.limits
            compiled = [limits.rules.by_name[name] for name in names]
            if not self._order:
                can_read = limits.reader.can_read
                compiled = [rule for rule in compiled if can_read(rule.source.needs_without_cost, features)]
            plan = limits.peek_plan(tuple(rule for rule in compiled if not rule.shadow))
            given = check_features("usage", features, plan, limits.reader, self._order)
            self._asked.append((admission, plan.rules, given))

    def read(self) -> dict[str, LimitUsage]:
        verdicts = []
        for admission, rules, features in self._asked:
            limits, request, found = admission.limits, admission.now, []
            for rule in rules:
                with self._leaving_out():
                    features = read(limits, limits.peek_plan((rule,)), request, features, admission.resolve)
                    found.append(rule)
            plans, decide = _plans(limits, found, features), limits.limiter.decide
            verdicts += [decide(plan, features, 0, consume=False) for plan in plans]
        return self._in_order(verdicts)

    async def aread(self) -> dict[str, LimitUsage]:
        verdicts = []
        for admission, rules, features in self._asked:
            limits, request, found = admission.limits, admission.now, []
            for rule in rules:
                with self._leaving_out():
                    features = await aread(limits, limits.peek_plan((rule,)), request, features)
                    found.append(rule)
            plans, adecide = _plans(limits, found, features), limits.limiter.adecide
            verdicts += [await adecide(plan, features, 0, consume=False) for plan in plans]
        return self._in_order(verdicts)

    @contextmanager
    def _leaving_out(self) -> Iterator[None]:
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
            if self._order:
                raise

    def _in_order(self, verdicts: Iterable[Verdict]) -> dict[str, LimitUsage]:
        found: dict[str, Decision] = {}
        for decision in (decision for verdict in verdicts for decision in verdict.decisions):
            other = found.get(decision.rule)
            if other is None or decision.remaining * other.limit < other.remaining * decision.limit:
                found[decision.rule] = decision
        shown = {rule: decision.hit[0].shown_rule for rule, decision in found.items()}  # as in the headers
        names = {rule: rule for rule in self._order} or shown
        return {names[rule]: _usage_of(found[rule]) for rule in names if rule in found}


def _plans(limits: HttpRules, rules: Iterable[CompiledRule], features: Mapping[str, Any]) -> list[Plan]:
    """Return the rules that have a key for these features. Those that a function may fail for are on their own."""
    keyed = [rule for rule in rules if rule.key.build(features) is not None]
    alone = [(rule,) for rule in keyed if rule.lookups]
    return list(map(limits.peek_plan, [tuple(rule for rule in keyed if not rule.lookups), *alone]))


def _usage_of(decision: Decision) -> LimitUsage:
    return {"limit": decision.limit, "remaining": decision.remaining, "reset_after": decision.reset_after}


class BlockingUsage:
    """Return how much is left of each rule for the client of the request. Consume nothing.

    Args:
        request: The request of the framework.
        *rules: The names of rules, those of decorators too. Without any: all rules that have a key in this request.
        **features: Features that only your view knows, such as ``email="ann@example.com"``.

    Returns:
        By rule, its ``limit``, its ``remaining`` amount, and ``reset_after``, the seconds until all is left again.
        Without names of rules, a rule has the name that clients see in the headers.
        A rule without a key in this request, or in shadow mode, is not included.

    Raises:
        ConfigError: There is no such rule, or nothing provides a feature of its key.
        MissingMiddlewareError: No middleware handles the request.

    Example:
        usage(request, "tokens")["tokens"]["remaining"]
    """

    def __init__(self, name: str, native_of: Callable[[Any], Mapping[str, Any]], respond: Callable[[Any], Any]) -> None:
        self.__name__ = name
        self._native_of = native_of
        self._respond = respond

    def __call__(self, request: Any, /, *rules: str, **features: Any) -> dict[str, LimitUsage]:
        return ClientUsage(self._native_of(request), rules, features).read()

    def view(self, *rules: str) -> Callable[[Any], Any]:
        """Return a view that responds with the usage as JSON.

        Args:
            *rules: The names of rules. Without any: all rules that have a key in the request.

        Returns:
            A view for your routes.
        """

        def usage(request: Any) -> Any:
            return self._respond(self(request, *rules))

        return usage


class AsyncUsage:
    """Async form of ``usage``: ``await usage(request, "tokens")``.

    Args:
        request: The request of the framework.
        *rules: The names of rules, those of decorators too. Without any: all rules that have a key in this request.
        **features: Features that only your view knows, such as ``email="ann@example.com"``.

    Returns:
        By rule, its ``limit``, its ``remaining`` amount, and ``reset_after``, the seconds until all is left again.
        Without names of rules, a rule has the name that clients see in the headers.
        A rule without a key in this request, or in shadow mode, is not included.

    Raises:
        ConfigError: There is no such rule, or nothing provides a feature of its key.
        MissingMiddlewareError: No middleware handles the request.
    """

    def __init__(self, name: str, native_of: Callable[[Any], Mapping[str, Any]], respond: Callable[[Any], Any]) -> None:
        self.__name__ = name
        self._native_of = native_of
        self._respond = respond

    @needs_loop
    async def __call__(self, request: Any, /, *rules: str, **features: Any) -> dict[str, LimitUsage]:
        return await ClientUsage(self._native_of(request), rules, features).aread()

    def view(self, *rules: str) -> Callable[[Any], Coroutine[Any, Any, Any]]:
        """Async form of ``BlockingUsage.view``: return a view that responds with the usage as JSON."""

        async def usage(request: Any) -> Any:
            return self._respond(await self(request, *rules))

        return usage
