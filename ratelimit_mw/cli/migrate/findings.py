"""The limits of another package as rules and decorators of this one, with notes on the parts that need your hand."""

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, Final

from ...errors import ConfigError
from ...rules.rule import Rule
from ...stores import check_store_url, redacted_url

_WORD: Final = re.compile(r"\W+", re.ASCII)
_STORE_URL: Final = "RATELIMIT_STORE_URL"
_IP_FUNCTIONS: Final = ("get_remote_address", "get_ipaddr")
"""The key functions of the other packages that return the IP address."""


@dataclass(kw_only=True)
class FoundLimit:
    """One limit of another package. Functions stay functions: they are named in notes."""

    limits: Any
    key: Any = "ip"
    name: str = ""
    methods: Iterable[str] = ()
    per_method: bool = False
    cost: Any = 1
    exempt_when: Callable[..., Any] | None = None
    deduct_when: Callable[..., Any] | None = None
    mode: str = "enforce"
    match: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class FoundView:
    """A view, its place, and the decorators that replace those of the other package, the outermost first."""

    view: str
    place: str
    decorators: list[str] = field(default_factory=list)


class Findings:
    """All parts of an application. ``wrap`` is the code of a feature that calls a function of the other package."""

    def __init__(self, wrap: str) -> None:
        self.settings: dict[str, Any] = {}
        self.algorithm = ""
        """The algorithm of all limits, "" for the default."""
        self.rules: list[dict[str, Any]] = []
        self.features: dict[str, str] = {}
        self.shared: dict[str, str] = {}
        """The code of the objects that several views have, by name."""
        self.views: list[FoundView] = []
        self.code: list[str] = []
        self.notes: list[str] = []
        self.problems: list[str] = []
        self._wrap = wrap

    def add_view(self, view: str, place: str, decorators: list[str]) -> None:
        if decorators:
            self.views.append(FoundView(view, place, decorators))

    def add_store(self, url: str | None) -> None:
        """Keep a store URL, or note that there is no store for it."""
        if not url or url.startswith("memory:"):
            return
        try:
            check_store_url(url)
            self.settings["store"] = url if redacted_url(url) == url else f"${{{_STORE_URL}}}"
            if redacted_url(url) != url:
                self.note(f"the store URL has a password. Set the environment variable {_STORE_URL} to the URL")
        except ConfigError as error:
            self.problems.append(f"store: no store for {redacted_url(url)}: {error}")

    def add_rule(self, found: FoundLimit, *key: str, where: str) -> None:
        """Add a rule to the settings file, which has no functions."""
        rule = self._fields(found, *key, where=where)
        for name in [name for name, value in rule.items() if isinstance(value, Code)]:
            self.problems.append(
                f"{where}: a settings file has no functions, so {name} = {rule.pop(name)} of the rule"
                f" {found.name!r} is left out"
            )
        if "limits" in rule:
            self.rules.append(rule)

    def _fields(self, found: FoundLimit, *key: str, where: str) -> dict[str, Any]:
        """Return the fields of the rule that replaces a limit. ``key`` comes before the key of the limit."""
        parts = [*key, *(["method"] if found.per_method else []), self._key(found.key, where)]
        match: dict[str, Any] = {"methods": sorted(map(str.upper, found.methods))} if found.methods else {}
        if found.exempt_when is not None:
            match[self.feature(found.exempt_when, where, '"yes" if {} else "no"')] = "no"
        options: dict[str, Any] = {
            "name": found.name,
            "limits": self._limits(found, where),
            "key": [] if parts == ["ip"] else parts,
            "match": {**found.match, **match},
            "cost": self._cost(found.cost, where),
            "mode": found.mode,
            "algorithm": self.algorithm,
        }
        if found.deduct_when is not None:
            options["count_when"] = self._outcome(found.deduct_when, where)
        empty: tuple[Any, ...] = ("", [], {}, 1, "enforce")
        return {name: value for name, value in options.items() if value not in empty}

    def decorator(self, found: FoundLimit, *key: str, where: str) -> str:
        """Return the code of ``@limit`` in place of a limit, or the name of the object that several views share."""
        fields = self._fields(found, *key, where=where)
        limits = fields.pop("limits")
        code = ", ".join([python(limits), *(f"{name}={python(value)}" for name, value in fields.items())])
        if not found.name:
            return f"@limit({code})"
        variable = _WORD.sub("_", found.name).strip("_") or "shared"
        self.shared[variable] = f"{variable} = limit({code})"
        return f"@{variable}"

    def _limits(self, found: FoundLimit, where: str) -> Any:
        if callable(found.limits):
            name = name_of_function(found.limits)
            if [*inspect.signature(found.limits).parameters] == ["key"]:
                self.note(f"{where}: the function {name} receives the value of the key, as before")
            else:
                self.problems.append(
                    f"{where}: the function {name} returns the limits. Write a table of limits,"
                    ' per={"plan": {"pro": "100/minute"}}, or a function of the value of the key'
                )
            return Code(self._code_name(found.limits, where))
        try:
            options: Any = {"algorithm": self.algorithm} if self.algorithm else {}
            rule = Rule(limits=found.limits, **options)
        except ConfigError as error:
            self.problems.append(f"{where}: {error}")
            return found.limits
        texts = [str(quota) for quota in rule.quotas]
        return texts[0] if len(texts) == 1 else texts

    def _outcome(self, function: Callable[..., Any], where: str) -> dict[str, Any]:
        """Return the statuses for which ``deduct_when`` is true, if nothing but the status decides."""
        statuses = _statuses_of(function)
        if statuses:
            self.note(f"{where}: deduct_when is true for responses with these statuses, and no body: check them")
            return {"status": statuses}
        self.problems.append(
            f"{where}: deduct_when={name_of_function(function)} reads more than the status of the response. Call"
            " count() of the verdict in the view"
        )
        return {"marked": True}

    def _key(self, key: Any, where: str) -> str:
        if isinstance(key, str):
            return key
        if getattr(key, "__name__", "") in _IP_FUNCTIONS:
            if key.__name__ == "get_ipaddr":
                self.note("get_ipaddr reads a header that clients can set. Set trusted_proxies to your proxies")
            return "ip"
        return self.feature(key, where, "{}")

    def _cost(self, cost: Any, where: str) -> Any:
        if callable(cost):
            self.note(f"{where}: the cost function {name_of_function(cost)} receives the request here")
            return Code(self._code_name(cost, where))
        return cost

    def _code_name(self, function: Any, where: str) -> str:
        """Return the name of a function in code. A lambda needs one."""
        name = name_of_function(function)
        if name != "lambda":
            return name
        name = f"the_function_of_line_{_line_of(function)}"
        self.note(f"{where}: give the lambda a name: {name}")
        return name

    def feature(self, function: Any, where: str, form: str) -> str:
        """Return the name of the feature for a function, and add its code."""
        called = self._code_name(function, where)
        name = _WORD.sub("_", called.rpartition(".")[2]).strip("_") or "client"
        name = name.replace("the_function_of_line", "client")
        call = form.format(self._wrap.format(called))
        direct = form == "{}" and self._wrap == "{}(request)"
        self.features[name] = called if direct else f"lambda request: {call}"
        return name

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _statuses_of(function: Callable[..., Any]) -> list[int]:
    """Return the statuses for which a function of a response is true; none where it needs more, or for all."""
    known = [int(status) for status in HTTPStatus if status >= HTTPStatus.OK]
    try:
        found = [status for status in known if function(SimpleNamespace(status_code=status))]
    except Exception:
        return []
    return [] if found == known else found


class Code(str):
    """A text that is a name in Python, and not a string."""

    __slots__ = ()


def python(value: Any) -> str:
    """Return a value as Python code with double quotes.

    >>> python({"methods": ["POST"]}), python(Code("plan"))
    ('{"methods": "POST"}', 'plan')
    """
    if isinstance(value, Code):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{python(name)}: {python(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(python, value)) + "]" if len(value) != 1 else python(value[0])
    return f'"{value}"' if isinstance(value, str) and '"' not in value and "\\" not in value else repr(value)


def unwrapped(function: Any) -> Any:
    """Return the function that was written, behind decorators, or the class of a view."""
    function = getattr(function, "view_class", getattr(function, "func", function))
    return inspect.unwrap(function) if callable(function) else function


def name_of_function(function: Any) -> str:
    """Return the qualified name of a function, a dotted path as it is."""
    if isinstance(function, str):
        return function
    own = unwrapped(function)
    name: str = getattr(own, "__qualname__", type(own).__qualname__)
    return name.rpartition("<locals>.")[2].replace("<lambda>", "lambda")


def place_of(function: Any) -> str:
    """Return the file and the line of a function or a class, relative to the current folder; else its name."""
    own = unwrapped(function)
    try:
        return f"{os.path.relpath(inspect.getfile(own))}:{inspect.getsourcelines(own)[1]}"
    except (TypeError, OSError):  # a name, or a function without its source
        return name_of_function(function)


def _line_of(function: Any) -> int:
    code = getattr(function, "__code__", None)
    return code.co_firstlineno if code else 0
