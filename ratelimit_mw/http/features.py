"""Reads features from a request. Each feature gets its function at start-up."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ..errors import ConfigError, FeatureTypeError, error_path
from ..keys.features import BUILT_IN, checked_name, is_email
from ..keys.forms import normalized_email
from ..keys.ip import MAX_ADDRESS
from ..keys.parts import Part, part_of
from ..keys.path import path_feature
from ..keys.values import parameter
from ..rules.access_lists import AccessLists
from ..rules.compiled import CompiledRule
from ..rules.costs import FeatureCost
from ..rules.declaration import checked_call
from ..rules.plan import Plan
from .annotations import returned_types
from .client_ip import ClientIP, key_without_address
from .region import Region
from .request import Request

_log = logging.getLogger("ratelimit_mw")
Read = Callable[[Request], Any]
OwnFeatures = Mapping[str, Callable[[Any], Any]] | Callable[[Any], Any]
"""Your functions of the request by feature, or one function that returns features by name."""

IDENTIFY: Final = "*"
"""The key of the function that returns several features. Without a ``TypedDict`` it may be that of any feature."""

_OF_REQUEST: Final = ("ip", "endpoint", "method", "path", "host", "scope")
_MAX_PLANS: Final = 10_000
_MAX_WATCHED: Final = 10_000  # requests; later requests are not checked
_FAMILIES: Final[dict[str, Callable[[str], Read]]] = {
    "header": lambda name: lambda request: request.header(name),
    "cookie": lambda name: lambda request: request.cookie(name),
    "query": lambda name: lambda request: request.query_field(name),
}
HINTS: Final = {
    "email": "Set email_field to the name of its field, or ",
    "region": "Set region_database or region_header, or ",
}


class Need(NamedTuple):
    """The option that needs a feature, as the ``path`` and ``of`` of an error."""

    path: str = ""
    of: str = ""


class FeatureReader:
    """Reads every feature that the rules need. Raises ``ConfigError`` for a feature without a function.

    ``passed`` are parts that may have no function, because views pass them to ``check``.
    """

    def __init__(
        self,
        needs: Mapping[str, Need],
        client_ip: ClientIP,
        own: OwnFeatures,
        adapter: Mapping[str, Read],
        routes: bool = False,
        body_feature: Callable[[str], Read | None] = lambda _: None,
        region: Region | None = None,
        passed: Iterable[str] = (),
    ) -> None:
        self._functions = functions = checked_functions(own)
        every = list(functions.values())
        with error_path("features"):
            self._identify = Identify(functions.pop(IDENTIFY)) if IDENTIFY in functions else None
        self._own = {name: _with_framework_request(read) for name, read in self._functions.items()}
        self._client_ip = client_ip
        self._ip_key = client_ip.key
        self._watched = 0
        self._built_in: dict[str, Read] = {
            "ip": self._ip_behind_proxies if client_ip.reads_header else self._ip_of_peer,
            **adapter,
            **{name: attrgetter(name) for name in ("method", "host", "endpoint")},
            "path": lambda request: path_feature(request.counted_path),
            **({"region": region.lookup} if region else {}),
        }
        self._routes = routes
        self._body_feature = body_feature
        self._in_body: set[str] = set()
        self._reads = {part_of(part).feature: self._find(part_of(part), need) for part, need in needs.items()}
        for part in map(part_of, passed):
            with suppress(ConfigError):
                self._reads.setdefault(part.feature, self._find(part, Need()))
        self._by_plan: dict[Plan, list[tuple[str, Read]]] = {}
        self.reads_bodies = bool(self._in_body)
        own_reads = (*adapter.items(), *self._own.items())
        self.may_await = bool(self._identify) or any(self._reads.get(name) is read for name, read in own_reads)
        """Whether the value of a feature may be an awaitable."""
        kinds = [kind for function in every for kind in (function, type(function).__call__)]
        self.must_await = any(map(inspect.iscoroutinefunction, kinds))
        """Whether one of your own functions is async."""

    def provides(self, name: str) -> bool:
        """Return whether a feature can be read."""
        return name in self._reads

    def knows(self, part: str) -> bool:
        """Return whether the part of a key is known, even where the routes of the application are not."""
        with suppress(ConfigError):
            return bool(self._find(part_of(part), Need())) and (self._routes or part != "endpoint")
        return False

    def value(self, name: str, request: Request) -> Any:
        """Return one feature, whether a rule needs it or not. It may be an awaitable."""
        return self._find(part_of(name), Need())(request)

    def can_read(self, names: Iterable[str], given: Mapping[str, Any]) -> bool:
        """Return whether each feature is given, or can be read without the body."""
        return all(name in given or (name in self._reads and name not in self._in_body) for name in names)

    def needs_body(self, plan: Plan) -> bool:
        """Return whether the plan needs a field of the body, which then must be read before the features."""
        return not self._in_body.isdisjoint(plan.needs)

    def read(self, plan: Plan, request: Request, provided: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the features that a plan needs, by name. Values of async functions are still awaitables."""
        try:
            reads = self._by_plan[plan]
        except KeyError:
            if len(self._by_plan) >= _MAX_PLANS:
                self._by_plan.clear()
            reads = self._by_plan[plan] = [(name, self._reads[name]) for name in plan.needs if name in self._reads]
        if provided:
            return {**provided, **{name: read(request) for name, read in reads if name not in provided}}
        features = {}
        for name, read in reads:  # on a short list faster than a comprehension
            features[name] = read(request)
        return features

    def _ip_of_peer(self, request: Request) -> str | None:
        peer = request.peer
        if self._watched < _MAX_WATCHED:
            self._watched += 1
            if lines := request.header_lines(self._client_ip.header):
                self._client_ip.watch(peer, lines)
        return self._ip_key(peer) or key_without_address(peer) if peer and len(peer) <= MAX_ADDRESS else None

    def _ip_behind_proxies(self, request: Request) -> Any:
        return self._client_ip.resolve(request.peer, request.proxy_lines(self._client_ip.header))

    def _find(self, part: Part, need: Need) -> Read:
        name, identify = part.feature, self._identify
        if identify is None or not identify.may_return(name):
            return self._read_of(part, need)
        otherwise: Read | None = None
        try:
            otherwise = self._read_of(part_of(name), need)
        except ConfigError:
            if name not in identify.declared:
                raise
        return identify.reader(name, otherwise)

    def _read_of(self, part: Part, need: Need) -> Read:
        name = part.feature
        if name in self._own:
            return self._own[name]
        if part.attribute and name in self._built_in:
            raise ConfigError(
                f"uses {part.name!r}, but the built-in feature {name!r} is a text. Write {name!r}, or pass"
                f" features={{{name!r}: function_of_the_request}} to the middleware",
                *need,
            )
        family, _, rest = name.partition(":")
        if rest and family in _FAMILIES:
            return self._converted(name, _FAMILIES[family](rest))
        if rest and family == "path" and self._routes:
            return lambda request: parameter(request.path_params.get(rest))
        if rest and is_email(name):
            field = self._read_of(part_of(rest), need)
            self._in_body |= {name} if rest in self._in_body else set()
            return lambda request: normalized_email(text) if isinstance(text := field(request), str) else text
        if name in self._built_in:
            return self._built_in[name]
        if read := self._body_feature(name):
            self._in_body.add(name)
            return self._converted(name, read)
        raise ConfigError(f"uses the feature {name!r}, but nothing provides it. {self._advice(name)}", *need)

    def _converted(self, name: str, read: Read) -> Read:
        """Return a function that reads a feature as the framework converts it for the view: 7 and 07 are one."""
        return (lambda request: request.conversions.apply(name, read(request))) if self._routes else read

    def _advice(self, name: str) -> str:
        """Return what to write for a feature that nothing provides."""
        identify = self._identify
        known = {*BUILT_IN, *self._own, *(identify.declared if identify else ())} - {name}
        close = [] if ":" in name else difflib.get_close_matches(name, known, 1, 0.75)
        start = HINTS.get(name) or (f"Did you mean {close[0]!r}? If not, " if close else "")
        advice = f"pass features={{{name!r}: function_of_the_request}} to the middleware"
        if identify is not None:
            advice = f"annotate the function of features with a TypedDict that has the field {name!r}"
        return f"{start}{advice}" if start else f"{advice[0].upper()}{advice[1:]}"


def checked_functions(own: OwnFeatures) -> dict[str, Callable[[Any], Any]]:
    """Return your functions by normalized feature name; ``ConfigError`` for one that takes no request."""
    if callable(own):
        own = {IDENTIFY: own}
    if not isinstance(own, Mapping):
        raise ConfigError(f"expected a table of functions by feature, or one function; got {own!r}", "features")
    functions = {}
    for name, read in own.items():
        with error_path("features" if name == IDENTIFY else f"features[{name!r}]"):
            functions[name if name == IDENTIFY else checked_name(name)] = checked_call(read, "the request")
    return functions


def provided_names(own: OwnFeatures) -> frozenset[str]:
    """Return the features that your functions provide; with ``IDENTIFY`` where one of them does not declare its own."""
    functions = checked_functions(own)
    with error_path("features"):
        declared = Identify(functions[IDENTIFY]).declared if IDENTIFY in functions else ()
    return frozenset((*functions, *declared)) - ({IDENTIFY} if declared else set())


def _with_framework_request(read: Callable[[Any], Any]) -> Read:
    return lambda request: read(request.own)


async def awaited(features: dict[str, Any]) -> dict[str, Any]:
    """Return the same features. Those of async functions are awaited."""
    for name, value in features.items():
        if type(value) is not str and inspect.isawaitable(value):
            features[name] = await value
    return features


def needs_of_rule(rule: CompiledRule) -> dict[str, Need]:
    """Return the option that each part of a rule is in. The key comes before all others."""
    source, of = rule.source, f"rule {rule.name!r}"
    options = dict.fromkeys(source.cost.parts if isinstance(source.cost, FeatureCost) else (), "cost")
    options |= {part: f"per.{part}" for part, _ in source.tables if part}
    options |= {part: f"match.{part}" for part, _ in source.matches.features}
    options |= {part: "key" for names in source.entries for part in names}
    return {part: Need(options.get(part, ""), of) for part in source.parts}


def needs_of_lists(lists: AccessLists) -> dict[str, Need]:
    """Return the list that each part is in."""
    paths = {entry.part: f"lists.{entry.kind}.{entry.part}" for entry in lists.entries}
    return {part: Need(paths[part]) for part in lists.parts}


class Identify:
    """Reads the features that your function returns. Others are read as if there were no function.

    ``declared`` are the names in the ``TypedDict`` that annotates the function. Without one, the function may return
    features that can be read without it, such as the user.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        kinds = [kind for kind in returned_types(function) if kind is not type(None)]
        if wrong := [kind.__name__ for kind in kinds if not issubclass(kind, Mapping)]:
            raise ConfigError(f"expected a function that returns features by name; got one that returns {wrong[0]}")
        self.declared = frozenset(name for kind in kinds for name in getattr(kind, "__annotations__", ()))
        _check_returned(self.declared)

    def may_return(self, name: str) -> bool:
        """Return whether your function may return a feature. Those of the request itself are read by the package."""
        return name in self.declared if self.declared else _is_own(name)

    def reader(self, name: str, otherwise: Read | None) -> Read:
        """Return the function that reads a feature. ``otherwise`` reads it where your function does not return it."""

        def pick(features: Mapping[str, Any], request: Request) -> Any:
            if name in features:
                return features[name]
            _warn_of_similar(name, tuple(features))
            return None if otherwise is None else otherwise(request)

        async def apick(call: _IdentifyCall, request: Request) -> Any:
            holder = request.first or request
            async with call.lock:
                await call.end(holder)
            value = read(request)
            return await value if inspect.isawaitable(value) else value

        def read(request: Request) -> Any:
            holder = request.first or request
            if holder.identified is None:
                features = self._function(request.own)
                holder.identified = _IdentifyCall(features) if inspect.isawaitable(features) else _checked(features)
            features = holder.identified
            return (apick if isinstance(features, _IdentifyCall) else pick)(features, request)

        return read


class _IdentifyCall:
    """A call of your async function. Its features, and checks at the same time, wait for the same result."""

    def __init__(self, result: Awaitable[Any]) -> None:
        self.result = result
        self.lock = asyncio.Lock()

    async def end(self, holder: Request) -> None:
        """Wait for the result, and keep it. After an error, the next one calls the function again."""
        if holder.identified is not self:
            return
        features = None
        try:
            features = _checked(await self.result)
        finally:
            holder.identified = features


def _checked(features: Any) -> Mapping[str, Any]:
    """Return what your function has returned; None means that nothing is known."""
    if features is None:
        return {}
    if not isinstance(features, Mapping):
        kind = type(features).__name__
        raise FeatureTypeError(f'expected features by name, such as {{"user": "alice"}}; got {kind}', "features")
    with error_path("features"):
        _check_returned(features)
    return features


def _check_returned(names: Iterable[str]) -> None:
    for name in names:
        if not _is_own(name):
            raise ConfigError(f"the function cannot return {name!r}, which is read from the request")


def _is_own(name: str) -> bool:
    return name not in _OF_REQUEST and ":" not in name


@lru_cache(1024)
def _warn_of_similar(name: str, returned: tuple[str, ...]) -> None:
    """Log a warning for a feature that the function returns under a similar name, once for each set of names."""
    for other in difflib.get_close_matches(name, returned, 1, 0.75):
        _log.warning("the function of features returns %r, but a rule uses %r. If one is a typo, fix it", other, name)
