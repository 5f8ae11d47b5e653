"""The functions ``check``, ``usage`` and ``verdict`` of all frameworks, each of which only finds its request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

from ..decision import Verdict
from ..errors import ConfigError
from ..rules.names import printable
from ..stores.blocking import Call, async_call, blocking_call, is_on_event_loop, run_blocking
from . import named
from .named import Usages, Values, verdict_of

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
V = TypeVar("V")
N = TypeVar("N")
Work = Coroutine[Any, Any, T]
Asked = tuple[Values, tuple[str, ...], Values]
"""The ASGI scope or WSGI environ of a request, names of rules, and features."""


class _InView(Generic[P]):
    """A call in a view. ``find`` returns where its request is, and ``run`` runs the coroutine or returns it."""

    def __init__(self, name: str, find: Callable[P, Asked], call: Call, run: Callable[[str, Any], Any]) -> None:
        self.__name__ = name
        self.__signature__ = inspect.signature(find).replace(return_annotation=inspect.Signature.empty)
        self._find, self._call, self._start = find, call, run

    def _run(self, work: Callable[..., Work[Any]], asked: Asked) -> Any:
        scope, rules, features = asked
        return self._start(self.__name__, work(self._call, scope, tuple(map(printable, rules)), features))


class Check(_InView[P], Generic[P, V, N]):
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

    def __call__(self, *request_and_rule: P.args, **features: P.kwargs) -> V:
        return cast(V, self._run(named.check, self._find(*request_and_rule, **features)))

    def reset(self, *request_and_rule: P.args, **features: P.kwargs) -> N:
        """Reset the counts of this client under the rule. An unreachable store is logged.

        Args:
            *request_and_rule: The request of the framework, but in Flask, and the name of the rule.
            **features: Features that only your view knows.

        Raises:
            ConfigError: There is no such rule, or a feature of its key is missing.
        """
        return cast(N, self._run(named.reset, self._find(*request_and_rule, **features)))


class UsageReader(_InView[P], Generic[P, V]):
    """Return how much is left of each rule for the client of the request. Consume nothing.

    Await it in Starlette and FastAPI, and as ``ausage`` of Django.

    Args:
        request: The request of the framework. Flask finds it without this argument.
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

    def __call__(self, *request_and_rules: P.args, **features: P.kwargs) -> V:
        return cast(V, self._run(named.usage, self._find(*request_and_rules, **features)))


def verdict_by(scope_of: Callable[[Any], Values]) -> Callable[[Any], Verdict]:
    """Return the function ``verdict``, which finds a request by its argument."""

    def verdict(request: Any) -> Verdict:
        """Return the verdict of the middleware on a request, with what your view has decided since.

        Args:
            request: The request of the framework.

        Returns:
            The verdict. It has no decisions when no rule applies, or while limits are off.

        Raises:
            MissingMiddlewareError: No middleware handles the request.

        Example:
            verdict(request)["tokens"].settle(150)
        """
        return verdict_of(scope_of(request))

    return verdict


class RuleOfRequest(Protocol):
    """The arguments of ``check``, where the request is one of them."""

    def __call__(self, request: Any, rule: str, /, **features: Any) -> Asked: ...


class RulesOfRequest(Protocol):
    """The arguments of ``usage``, where the request is one of them."""

    def __call__(self, request: Any, /, *rules: str, **features: Any) -> Asked: ...


def of_request(scope_of: Callable[[Any], Values]) -> tuple[RuleOfRequest, RulesOfRequest]:
    """Return the functions that find a request by the first argument of ``check`` and of ``usage``."""

    def find_rule(request: Any, rule: str, /, **features: Any) -> Asked:
        return scope_of(request), (rule,), features

    def find_rules(request: Any, /, *rules: str, **features: Any) -> Asked:
        return scope_of(request), rules, features

    return find_rule, find_rules


def in_threads(
    find: tuple[Callable[P, Asked], Callable[Q, Asked]],
) -> tuple[Check[P, Verdict, None], UsageReader[Q, Usages]]:
    """Return ``check`` and ``usage`` for views that wait in their thread."""

    def run(_: str, work: Work[T]) -> T:
        return run_blocking(work)

    return Check("check", find[0], blocking_call, run), UsageReader("usage", find[1], blocking_call, run)


def on_loops(
    find: tuple[Callable[P, Asked], Callable[Q, Asked]],
    names: tuple[str, str] = ("check", "usage"),
    start: Callable[[str, Any], Any] | None = None,
) -> tuple[Check[P, Work[Verdict], Work[None]], UsageReader[Q, Work[Usages]]]:
    """Return ``check`` and ``usage`` for async views. ``start`` returns the coroutine that the view awaits."""
    start = start or _require_loop
    return Check(names[0], find[0], async_call, start), UsageReader(names[1], find[1], async_call, start)


def _require_loop(name: str, work: Work[T]) -> Work[T]:
    """Raise ``ConfigError`` in a thread without an event loop, where nothing awaits the coroutine."""
    if not is_on_event_loop():
        work.close()
        blocking = f"anyio.from_thread.run({name}, request, RULE)"
        raise ConfigError(f"the function that calls it is not async. Write async def, or call {blocking}", name)
    return work
