"""``Match``: which requests a rule applies to, parsed from the rule's ``match`` table. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..errors import ConfigError, error_path, path_of
from ..keys.features import INVALID, Features
from ..keys.forms import normalize_host
from ..keys.ip import Networks, parse_network
from ..keys.parts import Part, checked_part, compared, part_of, spellings
from .paths import checked_pattern

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY")
_LOOK_ALIKES: Final = ("PROPPATCH", "ORDERPATCH")  # registered methods of WebDAV that are close to PATCH
_ANY_METHOD: Final = ("ALL", "ANY", "*")  # other packages use these words for every method

_TOKEN = re.compile(r"[A-Z][A-Z0-9_-]{0,31}")


Values = frozenset[str] | Networks


@dataclass(frozen=True, slots=True)
class Match:
    """The requests that a rule applies to. An empty field matches every request."""

    paths: tuple[str, ...] = ()
    methods: frozenset[str] = frozenset()
    hosts: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    features: tuple[tuple[str, Values], ...] = ()
    """The values as written, by the part of a key that they are compared with."""
    forms: tuple[tuple[Part, Values], ...] = ()
    """The same values in their comparison form."""

    @classmethod
    def parse(cls, match: object) -> Match:
        """Parse a table such as ``{"path": "/login", "methods": ["POST"], "region": ["DE"]}``."""
        if not isinstance(match, Mapping):
            raise ConfigError(f'expected a table such as {{path = "/login", methods = ["POST"]}}; got {match!r}')
        paths, methods, hosts, views, method = (
            _each(name, match[name], parse) if name in match else () for name, parse in _PARSERS.items()
        )
        features = tuple(_feature(name, match[name]) for name in match if name not in _PARSERS)
        every_method = frozenset(form for name in (*methods, *method) for form in spellings("method", name))
        forms = tuple((part_of(name), compared(name, values)) for name, values in features)
        return cls(paths, every_method, hosts, views, features, forms)

    @property
    def needs(self) -> tuple[str, ...]:
        """The features that have to be read before ``takes_features``."""
        return tuple(part.feature for part, _ in self.forms)

    @property
    def place(self) -> str:
        """The field for the place of the requests, "path" or "view"; "" for none."""
        return "path" if self.paths else "view" if self.views else ""

    @property
    def is_only_named(self) -> bool:
        """Whether no request matches: ``view = ""``. Such a rule is decided by its name."""
        return bool(self.views) and not any(self.views)

    def takes_method(self, method: str, is_automatic: bool = False) -> bool:
        """Whether a method matches. ``is_automatic``: the framework responds to it automatically."""
        return method in self.methods if self.methods else not is_automatic

    def takes(self, method: str, host: Any, is_automatic: bool = False) -> bool:
        return self.takes_method(method, is_automatic) and (not self.hosts or self.takes_host(host))

    def takes_host(self, host: Any) -> bool:
        """Whether a host matches, in its normalized form. An invalid host matches."""
        return (
            not self.hosts
            or host is INVALID
            or any(host.endswith(wanted[1:]) if wanted.startswith("*.") else host == wanted for wanted in self.hosts)
        )

    def takes_view(self, view: str) -> bool:
        """Whether the name of a view matches. ``match.view = ""`` matches no view."""
        return not self.views or (view != "" and view in self.views)

    def takes_features(self, features: Features) -> bool:
        """Whether the features match. An invalid feature matches, so that a client cannot evade the rule with it."""
        return next(self.missed(features), None) is None

    def missed(self, features: Features) -> Iterator[tuple[Part, Values]]:
        """Yield the parts whose value does not match, each with the values that do, as written."""
        for (part, forms), (_, values) in zip(self.forms, self.features, strict=True):
            text = part.compared(features)
            if text is not INVALID and text not in forms:
                yield part, values


def _feature(name: object, value: object) -> tuple[str, Values]:
    """A part and the values that match it."""
    with error_path(path_of(name)):
        part = checked_part(name, in_key=False)
    items = _each(str(name), value, lambda item: item)
    with error_path(path_of(name)):
        return part, parse_values(part, items)


def parse_values(part: str, items: Iterable[object]) -> Values:
    """Return values of a part, in every form in which a request may have them."""
    if part == "ip":
        return Networks(map(parse_network, items))
    texts = map(checked_method if part == "method" else checked_value, items)
    return frozenset(spelling for text in texts for spelling in spellings(part, text))


def _each(path: str, value: object, parse: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Parse a value, or every item of a list."""
    items: Any = value if isinstance(value, list | tuple | set | frozenset) else [value]
    if not items:
        raise ConfigError(f"an empty list matches no request. Leave {path} out to match all requests", path)
    with error_path(path):
        return tuple(parse(item) for item in items)


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


_PARSERS: Final[dict[str, Callable[[Any], Any]]] = {
    "path": checked_pattern,
    "methods": checked_method,
    "host": _host,
    "view": _view,
    "method": checked_method,  # as other packages write it
}
