"""Reads features from a request. Each feature gets its function at start-up."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, Final

from ..errors import ConfigError
from ..keys.features import BUILT_IN, is_email
from ..keys.forms import normalized_email, path_feature
from ..keys.ip import MAX_ADDRESS
from ..keys.parts import Part, parameter, part_of
from ..rules.plan import Plan
from ..rules.priorities import LOAD_FEATURES, PRIORITY, REQUEST_START
from ..settings import Settings
from .body import body_feature
from .client_ip import ClientIP, key_without_address
from .functions import CheckedFunctions, Read
from .headers import Memo
from .needs import ErrorOf
from .region import Region
from .request import Request

_TIME: Final = re.compile(r"(?:t=)?(\d{10,16}(?:\.\d{1,9})?)", re.ASCII)
_MAX_CHECKED: Final = 10_000  # requests; later requests are not checked
_FAMILIES: Final[dict[str, Callable[[str], Read]]] = {
    "header": lambda name: lambda request: request.header(name),
    "cookie": lambda name: lambda request: request.cookie(name),
    "query": lambda name: lambda request: request.query_field(name),
}
HINTS: Final = {
    "priority": "Set priorities.header, or ",
    "region": "Set region_database or region_header, or ",
}


class FeatureReader:
    """Reads every feature that the rules need. Raises ``ConfigError`` for a feature without a function.

    ``optional`` are parts that may have no function, because views pass them to ``check``.
    """

    def __init__(
        self,
        needs: Mapping[Part, ErrorOf],
        settings: Settings,
        functions: CheckedFunctions,
        framework_reads: Mapping[str, Read],
        has_routes: bool = False,
        optional: Iterable[str] = (),
    ) -> None:
        client_ip = ClientIP(settings.trusted_proxies, settings.forwarded_header, settings.ipv6_prefix)
        self._functions = functions
        self._client_ip = client_ip
        self._ip_key = client_ip.key
        self._checked = 0
        self._built_in: dict[str, Read] = {
            "ip": self._ip_behind_proxies if client_ip.reads_header else self._ip_of_peer,
            **framework_reads,
            **{name: attrgetter(name) for name in ("method", "host")},
            "endpoint": attrgetter("to.endpoint"),
            "view": attrgetter("to.function"),
            "path": lambda request: path_feature(request.counted_path),
        }
        if settings.region_database or settings.region_header:
            whole_ip = ClientIP(settings.trusted_proxies, settings.forwarded_header, 128)
            self._built_in["region"] = Region(settings.region_database, settings.region_header, whole_ip).lookup
        if client_ip.reads_header:
            self._built_in[REQUEST_START] = self._request_start
        if header := settings.priorities.header:
            client_ip.require_proxies("priorities.header")
            self._built_in[PRIORITY] = lambda request: self._of_proxy(request, header)
        self._has_routes = has_routes
        self._body_feature = partial(body_feature, limit=settings.body_limit)
        self._in_body: set[str] = set()
        self._reads = {part.feature: self._find(part, error_of) for part, error_of in needs.items()}
        for part in map(part_of, (*optional, *LOAD_FEATURES)):
            with suppress(ConfigError):
                self._reads.setdefault(part.feature, self._find(part))
        self._by_plan = Memo(self._reads_for_plan)
        self.reads_bodies = bool(self._in_body)
        may_wait = {*framework_reads.values(), *functions.reads.values()}
        self.may_await = functions.identify is not None or not may_wait.isdisjoint(self._reads.values())
        """Whether the value of a feature may be an awaitable."""

    def provides(self, name: str) -> bool:
        """Return whether a feature can be read."""
        return name in self._reads

    def knows(self, part: str) -> bool:
        """Return whether the part of a key is known, even where the routes of the application are not."""
        with suppress(ConfigError):
            return bool(self._find(part_of(part))) and (self._has_routes or part not in ("endpoint", "view"))
        return False

    def value(self, name: str, request: Request) -> Any:
        """Return one feature, whether a rule needs it or not. It may be an awaitable."""
        return self._find(part_of(name))(request)

    def can_read(self, names: Iterable[str], given: Mapping[str, Any]) -> bool:
        """Return whether each feature is given, or can be read without the body."""
        return all(name in given or (name in self._reads and name not in self._in_body) for name in names)

    def needs_body(self, plan: Plan) -> bool:
        """Return whether the plan needs a field of the body, which then must be read before the features."""
        return not self._in_body.isdisjoint(plan.needs)

    def _reads_for_plan(self, plan: Plan) -> list[tuple[str, Read]]:
        names = dict.fromkeys((*plan.needs, *(LOAD_FEATURES if plan.adapts else ())))
        return [(name, self._reads[name]) for name in names if name in self._reads]

    def read(self, plan: Plan, request: Request, provided: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the features that a plan needs, by name. Values of async functions are still awaitables."""
        reads = self._by_plan[plan]
        if provided:
            return {**provided, **{name: read(request) for name, read in reads if name not in provided}}
        features = {}
        for name, read in reads:  # on a short list faster than a comprehension
            features[name] = read(request)
        return features

    def _ip_of_peer(self, request: Request) -> str | None:
        peer = request.peer
        if self._checked < _MAX_CHECKED:
            self._checked += 1
            if lines := request.header_lines(self._client_ip.header):
                self._client_ip.warn_of_proxy(peer, lines)
        return self._ip_key(peer) or key_without_address(peer) if peer and len(peer) <= MAX_ADDRESS else None

    def _of_proxy(self, request: Request, header: str) -> str | None:
        """Return the line that a trusted proxy has written. Of two lines, one is the client's own."""
        lines = request.header_lines(header) if self._client_ip.trusts(request.peer) else []
        return lines[0] if len(lines) == 1 else None

    def _request_start(self, request: Request) -> float | None:
        """Return the time in ``X-Request-Start`` of a trusted proxy: seconds, milliseconds or microseconds."""
        match = _TIME.fullmatch(self._of_proxy(request, "x-request-start") or "")
        return None if match is None else float(match[1]) / 1000 ** ((len(match[1].partition(".")[0]) - 9) // 3)

    def _ip_behind_proxies(self, request: Request) -> Any:
        return self._client_ip.resolve(request.peer, request.header_lines(self._client_ip.header))

    def _find(self, part: Part, error_of: ErrorOf = ConfigError) -> Read:
        """Return the function that reads a feature: yours where it returns the feature, else that of the request."""
        name, identify = part.feature, self._functions.identify
        if identify is None or not identify.may_return(name):
            return self._read_of(part, error_of)
        otherwise: Read | None = None
        try:
            otherwise = self._read_of(part_of(name), error_of)
        except ConfigError:
            if name not in identify.declared:
                raise
        return identify.reader(name, otherwise)

    def _read_of(self, part: Part, error_of: ErrorOf) -> Read:
        name = part.feature
        if name in self._functions.reads:
            return self._functions.reads[name]
        if part.attribute and name in self._built_in:
            raise error_of(
                f"uses {part.name!r}, but the built-in feature {name!r} is a text. Write {name!r}, or pass"
                f" features={{{name!r}: function_of_the_request}} to the middleware"
            )
        family, _, rest = name.partition(":")
        if rest and family in _FAMILIES:
            return self._converted(name, _FAMILIES[family](rest))
        if rest and family == "path" and self._has_routes:
            return lambda request: parameter(request.path_params.get(rest))
        if is_email(name):
            rest = rest or "field:email"
            field = self._read_of(part_of(rest), error_of)
            self._in_body |= {name} if rest in self._in_body else set()
            return lambda request: normalized_email(text) if isinstance(text := field(request), str) else text
        if name in self._built_in:
            return self._built_in[name]
        if read := self._body_feature(name):
            self._in_body.add(name)
            return self._converted(name, read)
        raise error_of(f"uses the feature {name!r}, but nothing provides it. {self._advice(name)}")

    def _converted(self, name: str, read: Read) -> Read:
        """Return a function that reads a feature as the framework converts it for the view: 7 and 07 are one."""
        return (lambda request: request.to.convert(name, read(request))) if self._has_routes else read

    def _advice(self, name: str) -> str:
        """Return what to write for a feature that nothing provides."""
        known = {*BUILT_IN, *self._functions.may_provide} - {name}
        close = [] if ":" in name else difflib.get_close_matches(name, known, 1, 0.75)
        start = HINTS.get(name) or (f"Did you mean {close[0]!r}? If not, " if close else "")
        advice = f"pass features={{{name!r}: function_of_the_request}} to the middleware"
        if self._functions.identify is not None:
            advice = f"annotate the function of features with a TypedDict that has the field {name!r}"
        return f"{start}{advice}" if start else f"{advice[0].upper()}{advice[1:]}"
