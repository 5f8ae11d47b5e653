"""``Match``: which requests a rule applies to, parsed from the rule's ``match`` table. Pure."""

# Annotations are evaluated here, because msgspec reads them.

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Annotated, Any, Final, Self, TypedDict

from ..errors import ConfigError
from ..keys.features import INVALID, Features
from ..keys.forms import normalize_host
from ..keys.ip import Networks, parse_network
from ..keys.parts import Part, comparison_forms, part_of, spellings
from .declaration import Parse, decode, option
from .paths import checked_pattern

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY")
_LOOK_ALIKES: Final = ("PROPPATCH", "ORDERPATCH")  # registered methods of WebDAV that are close to PATCH
_ANY_METHOD: Final = ("ALL", "ANY", "*")  # other packages use these words for every method
_EXPECTED: Final = 'a table such as {path = "/login", methods = ["POST"]}'

_TOKEN = re.compile(r"[A-Z][A-Z0-9_-]{0,31}")

Values = frozenset[str] | Networks
Texts = str | Sequence[str]
FeatureValues = str | int | Sequence[str | int]


def each_of(value: object, parse: Callable[[Any], Any] = lambda item: item) -> tuple[Any, ...]:
    """Parse a value, or every item of a list."""
    items: Any = value if isinstance(value, list | tuple | set | frozenset) else [value]
    if not items:
        raise ConfigError("an empty list matches no request. Leave it out")
    return tuple(map(parse, items))


def checked_value(value: object) -> str:
    """Return the text of a value; ``ConfigError`` for anything but text or a whole number."""
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise ConfigError(f"expected text or a whole number; got {value!r}")
    return str(value)


def checked_method(method: object) -> str:
    """Return the name of a method in upper case; ``ConfigError`` for anything else."""
    name = method.upper() if isinstance(method, str) else ""
    if name in _ANY_METHOD:
        raise ConfigError(f"{method!r} is not a method. Leave it out to match all methods")
    if name in METHODS or name in _LOOK_ALIKES:
        return name
    close = difflib.get_close_matches(name, METHODS, 1, 0.65)
    if close or not _TOKEN.fullmatch(name):
        hint = f". Did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"expected an HTTP method such as {', '.join(METHODS[:6])}; got {method!r}{hint}")
    return name


def _host(host: object) -> str:
    text = host if isinstance(host, str) else ""
    wildcard, name = ("*.", text[2:]) if text.startswith("*.") else ("", text)
    normalized = normalize_host(name)
    if normalized in ("", INVALID) or ":" in name.rpartition("]")[2]:
        raise ConfigError(f'expected a host without port such as "example.com" or "*.example.com"; got {host!r}')
    return f"{wildcard}{normalized}"


def _view(view: object) -> str:
    if not isinstance(view, str):
        raise ConfigError(f'expected the name of a view such as "auth.login"; got {view!r}')
    return view


def _each(parse: Parse) -> Parse:
    return partial(each_of, parse=parse)


class MatchOptions(TypedDict, total=False):
    """The requests that a rule applies to. Every other name is a feature, with the values that match."""

    path: Annotated[
        Texts,
        _each(checked_pattern),
        option(
            "Patterns: `*` is any text within a segment, `{name}` one segment, `**` and `{name:path}` any number of"
            " segments, even none."
        ),
    ]
    methods: Annotated[Texts, _each(checked_method), option("HTTP methods. `GET` includes `HEAD`.")]
    method: Annotated[Texts, _each(checked_method), option("The same as `methods`.")]
    view: Annotated[
        Texts,
        _each(_view),
        option(
            "Names of views, which match under all their paths: `auth.login` in Flask, `auth:login` in Django and"
            " Starlette, `login` in FastAPI."
        ),
    ]
    host: Annotated[
        Texts,
        _each(_host),
        option(
            "Hosts without port. `*.example.com` is every host below `example.com`, but not `example.com`. Case and a"
            " final dot do not matter."
        ),
    ]


@dataclass(frozen=True, slots=True)
class Match:
    """The requests that a rule applies to. An empty field matches every request."""

    paths: tuple[str, ...] = ()
    methods: frozenset[str] = frozenset()
    hosts: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    features: tuple[tuple[Part, Values], ...] = ()
    """The values as written, by the part of a key that they are compared with."""
    forms: tuple[tuple[Part, Values], ...] = ()
    """The same values in their comparison form."""

    @classmethod
    def parse(cls, match: object) -> Self:
        """Parse a table such as ``{"path": "/login", "methods": ["POST"], "region": ["DE"]}``."""
        features: list[tuple[Part, Values]] = []
        table = decode(MatchOptions, match, _EXPECTED, others=lambda *pair: features.append(parse_feature(*pair)))
        path, host, view, *methods = (table[name] or () for name in ("path", "host", "view", "methods", "method"))
        every = frozenset(form for name in chain(*methods) for form in spellings("method", name))
        forms = tuple((part, comparison_forms(part, values)) for part, values in features)
        return cls(path, every, host, view, tuple(features), forms)

    @property
    def needs(self) -> tuple[str, ...]:
        """The features that have to be read before ``takes_features``."""
        return tuple(part.feature for part, _ in self.forms)

    @property
    def route_field(self) -> str:
        """The field that needs the route of a request, "path" or "view"; "" for none."""
        return "path" if self.paths else "view" if self.views else ""

    @property
    def is_only_named(self) -> bool:
        """Whether no request matches: ``view = ""``. Such a rule is decided by its name."""
        return bool(self.views) and not any(self.views)

    def values_of(self, part: str) -> list[str]:
        """Return the values that match for a part of a key, in every form."""
        return [str(value) for name, values in self.features if name == part for value in values]

    def takes_method(self, method: str, is_automatic: bool = False) -> bool:
        """Return whether a method matches. ``is_automatic``: the framework responds to it automatically."""
        return method in self.methods if self.methods else not is_automatic

    def takes(self, method: str, host: Any, is_automatic: bool = False) -> bool:
        return self.takes_method(method, is_automatic) and self.takes_host(host)

    def takes_host(self, host: Any) -> bool:
        """Return whether a host matches, in its normalized form. An invalid host matches."""
        return (
            not self.hosts
            or host is INVALID
            or any(host.endswith(wanted[1:]) if wanted.startswith("*.") else host == wanted for wanted in self.hosts)
        )

    def takes_view(self, view: str) -> bool:
        """Return whether the name of a view matches. ``match.view = ""`` matches no view."""
        return not self.views or (view != "" and view in self.views)

    def takes_features(self, features: Features) -> bool:
        """Return whether the features match. An invalid one does, so that a client cannot evade the rule with it."""
        return next(self.mismatches(features), None) is None

    def mismatches(self, features: Features) -> Iterator[tuple[Part, Values]]:
        """Yield the parts whose value does not match, each with the values that do, as written."""
        for (part, forms), (_, values) in zip(self.forms, self.features, strict=True):
            text = part.compared(features)
            if text is not INVALID and text not in forms:
                yield part, values


def parse_feature(name: object, value: object) -> tuple[Part, Values]:
    """Return a part of a key, and its values in every form in which a request may have them."""
    part = part_of(name, in_key=False)
    items = each_of(value)
    if part == "ip":
        return part, Networks(map(parse_network, items))
    texts = map(checked_method if part == "method" else checked_value, items)
    return part, frozenset(spelling for text in texts for spelling in spellings(part, text))
