"""The limits of another package as rules and decorators of this one, with notes on the parts that need your hand."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, Final

from ...errors import ConfigError
from ...keys.features import BUILT_IN, KEY_ALIASES
from ...rules.rule import Rule
from ...stores import check_store_url, redacted_url
from .names import Code, CodeNames, identity, is_in_folder, name_of_function, numbered, word

_UNPRINTABLE: Final = re.compile(r"[^\x21-\x7e]+")
_STORE_URL: Final = "RATELIMIT_STORE_URL"
_IP_FUNCTIONS: Final = ("get_remote_address", "get_ipaddr")
"""The key functions of the other packages that return the IP address."""
INSTEAD_OF_FUNCTION: Final = (
    'Write a table of limits, per={"plan": {"pro": "100/minute"}}, or a function of the value of the key'
)
"""The advice on a function that returns limits."""


@dataclass(kw_only=True)
class FoundLimit:
    """One limit of another package. Functions stay functions: they are named in notes."""

    limits: Any
    key: Any = "ip"
    name: str = ""
    """The name of the rule, "" for none. Decorators with one name are one object, which views share."""
    methods: Iterable[str] = ()
    per_method: bool = False
    cost: Any = 1
    exempt_when: Callable[..., Any] | None = None
    deduct_when: Callable[..., Any] | None = None
    mode: str = "enforce"
    match: Mapping[str, Any] = field(default_factory=dict)
    scope: Callable[..., Any] | None = None
    """A function that returns the name of the count."""
    unrouted: bool = False


@dataclass
class FoundView:
    """A view, its place, and the decorators that replace those of the other package, the outermost first."""

    view: str
    place: str
    decorators: list[str] = field(default_factory=list)


class Findings:
    """All parts of the application ``app``, which is "shop:app". ``wrap`` is the call of a function with parameters."""

    def __init__(self, app: str, wrap: str) -> None:
        self.settings: dict[str, Any] = {}
        self.algorithm = ""
        """The algorithm of all limits, "" for the default."""
        self.defaults: list[FoundLimit] = []
        """The limits of the rules whose name starts with default."""
        self.rules: list[dict[str, Any]] = []
        self.features: dict[str, str] = {}
        self.shared: dict[str, str] = {}
        """The code of the objects that several views have, by name."""
        self.views: list[FoundView] = []
        self.code: list[str] = []
        self.notes: list[str] = []
        self.problems: list[str] = []
        self.names = CodeNames(app.partition(":")[0], self.problems)
        self._wrap = wrap
        self._features: dict[Any, str] = {}
        self._shared: dict[tuple[str, str], tuple[str, str]] = {}
        self._rule_names: set[str] = set()
        self._quotas: dict[str, set[tuple[str, str]]] = {}

    def add_view(self, view: str, place: str, decorators: list[str]) -> None:
        if decorators:
            if not is_in_folder(place):
                self.problems.append(f"{view}: its code is not in this folder. Write the decorators where you add it")
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

    def rule_name(self, name: str) -> str:
        """Return a name that no other rule has."""
        found = next(each for each in numbered(_UNPRINTABLE.sub("-", name), "-") if each not in self._rule_names)
        self._rule_names.add(found)
        return found

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
        if found.scope is not None:
            self.problems.append(
                f"{where}: the function {name_of_function(found.scope)} returns the scope, which is left out. Write it"
                " as a feature, and the feature in the key"
            )
        limits = self._limits(found, where, len(parts))
        options: dict[str, Any] = {
            "name": found.name,
            "limits": limits,
            "key": [] if parts == ["ip"] and not isinstance(limits, Code) else parts,
            "match": {**found.match, **match},
            "cost": self._cost(found.cost, where),
            "mode": found.mode,
            "algorithm": self.algorithm,
            "unrouted": found.unrouted,
        }
        if found.deduct_when is not None:
            options["count_when"] = self._outcome(found.deduct_when, where)
        empty: tuple[Any, ...] = ("", [], {}, 1, "enforce")
        return {name: value for name, value in options.items() if value is True or value not in (*empty, False)}

    def decorator(self, found: FoundLimit, *key: str, where: str) -> str:
        """Return the code of ``@limit`` instead of a limit, or the name of the object that several views share."""
        if found.name:
            return f"@{self.share(found, where)[0]}"
        return f"@{self.limit_code(found, *key, where=where)}"

    def limit_code(self, found: FoundLimit, *key: str, where: str) -> str:
        return _limit_code(self._fields(found, *key, where=where))

    def share(self, found: FoundLimit, where: str) -> tuple[str, str]:
        """Return the variable and the rule of the object that several views share: one for equal limits of a name."""
        fields = self._fields(found, where=where)
        key = (found.name, _limit_code(fields))
        if key not in self._shared:
            fields["name"] = self.rule_name(found.name)
            variable = self.names.unused(fields["name"])
            self._shared[key] = variable, fields["name"]
            self.shared[variable] = f"{variable} = {_limit_code(fields)}"
            self._check_scope(found.name, fields, where)
        return self._shared[key]

    def is_shared(self, name: str) -> bool:
        return any(scope == name for scope, _ in self._shared)

    def _check_scope(self, scope: str, fields: dict[str, Any], where: str) -> None:
        """Add a problem for limits of one scope that share a count in the other package, and do not here."""
        limits = fields["limits"] if isinstance(fields["limits"], list) else [fields["limits"]]
        known, key = self._quotas.setdefault(scope, set()), str(fields.get("key"))
        if both := [quota for quota in limits if (quota, key) in known]:
            self.problems.append(
                f"{where}: {scope!r} has {both[0]} in two limits that differ, which shared one count. Here, each"
                " has its own. Write one limit for both, or lower the amounts"
            )
        known |= {(quota, key) for quota in limits}

    def _limits(self, found: FoundLimit, where: str, size: int) -> Any:
        """Return the limits as text, or the code of their function. ``size`` is the number of parts of the key."""
        if callable(found.limits):
            name = name_of_function(found.limits)
            code = self.names.local(found.limits, where)
            if "key" in _parameters(found.limits):
                self.note(f"{where}: the function {name} receives the value of the key, as before")
                return Code(code if size == 1 else f"lambda *key: {code}(key[-1])")
            self.problems.append(f"{where}: the function {name} returns the limits. {INSTEAD_OF_FUNCTION}")
            return Code(code)
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
        if not callable(cost):
            return cost
        code = self.names.local(cost, where)
        call = self._call(cost, code)
        return Code(code if call == f"{code}(request)" else f"lambda request: {call}")

    def _call(self, function: Any, code: str) -> str:
        """Return the code that calls a function: some take no parameters, others the request."""
        return self._wrap.format(code) if _parameters(function) else f"{code}()"

    def feature(self, function: Any, where: str, form: str) -> str:
        """Return the name of the feature for a function, and add its code. No feature of the package changes."""
        if (identity(function), form) not in self._features:
            code = self.names.imported(function, where)
            base = word(code.rpartition(".")[2]).lower().replace("the_function_of_line", "client") or "client"
            taken = {*BUILT_IN, *KEY_ALIASES, *self.features}
            names = numbered(base if base[0].isalpha() and base not in taken else f"client_{base}")
            name = next(each for each in names if each not in taken)
            call = self._call(function, code)
            self.features[name] = (
                code if form == "{}" and call == f"{code}(request)" else f"lambda request: {form.format(call)}"
            )
            self._features[identity(function), form] = name
        return self._features[identity(function), form]

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _limit_code(fields: dict[str, Any]) -> str:
    options = [f"{name}={python(value)}" for name, value in fields.items() if name != "limits"]
    return f"limit({', '.join([python(fields['limits']), *options])})"


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters of a function; ["request"] where they are not known."""
    try:
        return [*inspect.signature(function).parameters]
    except (TypeError, ValueError):
        return ["request"]


def _statuses_of(function: Callable[..., Any]) -> list[int]:
    """Return the statuses for which a function of a response is true; none where it needs more, or for all."""
    known = [int(status) for status in HTTPStatus if status >= HTTPStatus.OK]
    try:
        found = [status for status in known if function(SimpleNamespace(status_code=status))]
    except Exception:
        return []
    return [] if found == known else found


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
