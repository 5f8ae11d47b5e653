"""All errors that this package raises on purpose."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

_Parsed = TypeVar("_Parsed")
_SITE: Final = "https://ratelimit-mw.github.io/ratelimit-mw/"
SETTINGS: Final = "reference/settings"
PAGES: Final = {
    "limits": "reference/quotas",
    "algorithm": "explanation/algorithms",
    "wait max_waiting hold_at_most": "reference/quotas#concurrent-requests",
    "key": "reference/features",
    "ipv6_prefix trusted_proxies forwarded_header": "reference/features#the-clients-ip-address",
    "body_limit body_timeout": "reference/features#bodies",
    "region_database region_header": "reference/features#region",
    "secret keyed": "reference/features#keeping-people-out-of-the-store",
    "match": "reference/settings#match",
    "count_when count_unless": "reference/settings#outcomes",
    "cost unit": "reference/settings#costs",
    "per per_key": "reference/settings#limits-of-single-clients",
    "lists exempt": "reference/settings#lists",
    "defaults": "reference/settings#defaults",
    "rules": "reference/settings#a-rule",
    "schedule timezone": "how-to/cookbook/schedules",
    "ban": "how-to/cookbook/bans",
    "target tune": "how-to/cookbook/load",
    "reserve priorities": "how-to/cookbook/priorities",
    "headers reset retry_jitter": "reference/headers",
    "store store_timeout on_store_error fleet_size fallback_keys": "reference/stores/stores",
    "observers event_features": "how-to/operate/observing",
    "traffic_log traffic_clients": "how-to/operate/traffic-log",
    "features": "reference/features#functions-of-your-own",
    "rejection": "reference/headers#your-own-response",
    "enabled reload_interval settings": SETTINGS,
}
"""The page about each setting. The last setting in the path of an error has precedence: ``rules[0].limits[1]``."""
_PAGE_OF: Final = {setting: page for settings, page in PAGES.items() for setting in settings.split()}


class RateLimitError(Exception):
    """The base class of all errors of this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[RateLimitError], args: tuple[Any, ...], attributes: dict[str, Any]) -> RateLimitError:
    """Return an error that was pickled. Its own arguments are no longer known, only the message."""
    error = kind.__new__(kind, *args)
    super(RateLimitError, error).__init__(*args)
    error.__dict__.update(attributes)
    return error


class ConfigError(RateLimitError, ValueError):
    """A quota, rule, key, option or setting is invalid. It is raised when you build the object.

    A traceback also shows the page about the setting, which is a note of the error.

    Args:
        message: The problem, without its place.
        path: The path inside the invalid object, outermost part first: ``rules[1].cost``.
        of: The name of the invalid object, empty when ``path`` is enough.

    Example:
        >>> str(ConfigError("expected a whole number", "rules[1].cost"))
        'rules[1].cost: expected a whole number'
    """

    def __init__(self, message: str, path: str = "", of: str = "") -> None:
        super().__init__(message, path, of)
        self.message = message
        self.path = path
        self.of = of
        if pages := [_PAGE_OF[word] for word in re.findall(r"\w+", path) if word in _PAGE_OF]:
            self.name_page(pages[-1])

    def name_page(self, page: str) -> None:
        """Name the page about the problem in a note, if there is none.

        Args:
            page: The path of the page in the documentation, such as "reference/settings#limits".
        """
        if not hasattr(self, "__notes__"):
            self.add_note(f"See {url_of(page)}")

    def __str__(self) -> str:
        return ": ".join(part for part in (self.of, self.path, self.message) if part)


class FeatureTypeError(ConfigError, TypeError):
    """The value of a feature has a type without a stable text, or lacks an attribute. The message never has the value.

    It is raised in a request. When an annotation shows the type, the application does not start.

    Args:
        message: The problem, without its place.
        path: The feature.
        of: The name of the invalid object, empty when ``path`` is enough.
    """


def url_of(page: str) -> str:
    """Return the URL of a page of the documentation, such as "reference/settings#limits"."""
    page, _, section = page.partition("#")
    return f"{_SITE}{page}.html{f'#{section}' if section else ''}"


def join_path(outer: str, inner: str) -> str:
    """Return the path of a part of another: "rules[1].cost" or "limits[0]"."""
    return f"{outer}{'.' if outer and inner and not inner.startswith('[') else ''}{inner}"


@contextmanager
def error_path(path: str) -> Iterator[None]:
    """Put ``path`` in front of each ``ConfigError`` of this block. It drops ``of``: a path in a file is more exact."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(error.message, join_path(path, error.path)) from None


@contextmanager
def error_of(name: str) -> Iterator[None]:
    """Name the invalid object in each ``ConfigError`` of this block. The path stays."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(error.message, error.path, name) from None


def parse_each(parse: Callable[[Any], _Parsed], items: Iterable[Any]) -> tuple[_Parsed, ...]:
    """Parse items. The path of an error is the place of its item, such as ``[0]``."""
    parsed = []
    for i, item in enumerate(items):
        with error_path(f"[{i}]"):
            parsed.append(parse(item))
    return tuple(parsed)


def path_of(name: object) -> str:
    """Return a name from a file as the path of an error, "" for one that cannot be shown.

    >>> path_of("limits"), path_of("user.role")
    ('limits', "['user.role']")
    """
    if not isinstance(name, str) or not name.isprintable():
        return ""
    return f"['{name}']" if re.search(r"[.\[\]]", name) else name


def suggestion(word: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: the known words that it begins, the nearest one, or all."""
    known, word = list(known), str(word)
    longer = sorted((each for each in known if each.startswith(word)), key=len) if len(word) > 2 else []
    nearest = difflib.get_close_matches
    if close := longer[:3] or nearest(word, known, 1) or nearest(word.lower(), known, 1):
        return f". Did you mean {' or '.join(map(repr, close))}?"
    return f". Expected one of {', '.join(known)}" if known else ". There is none"


class MissingMiddlewareError(RateLimitError, RuntimeError):
    """Your view with a limit was called in a request that no middleware handled, or that has another view.

    Args:
        view: The name of the view.
        problem: Why the view needs a middleware.
        is_handled: Whether a middleware has handled the request, for another view.
    """

    def __init__(self, view: str, problem: str = "is limited by a decorator", is_handled: bool = False) -> None:
        if is_handled:
            super().__init__(
                f"{view} {problem}, but the route of this request does not lead to it."
                " In a function that is no view, call check() instead."
                " Otherwise, write functools.wraps in the decorators above the limit,"
                " or a rule with match.path instead of the limit"
            )
            return
        super().__init__(
            f"{view} {problem}, but no RateLimitMiddleware handled this request."
            " Add RateLimitMiddleware (Flask: RateLimiter) to the application that this view's route belongs to."
            " In a test that calls the view directly, use ratelimit_mw.testing.limits_off()"
        )


class MissingExtraError(RateLimitError, ImportError):
    """An optional library that you need is not installed. The message has the command that installs it.

    Args:
        feature: The feature that needs the library, such as "the store redis://".
        extra: The extra of this package that installs the library.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f'{feature} needs an extra that is not installed: pip install "ratelimit-mw[{extra}]"')
        self.add_note(f"See {url_of('project/support#optional-libraries')}")


class StoreError(RateLimitError):
    """Your store is unreachable, has exceeded its timeout, or has failed."""


class NoRoomError(StoreError):
    """A store replies, but has no room for a new key or a longer state. It still counts all others."""


class StateError(StoreError):
    """A store replies, but the state of a key cannot be decoded. The limiter forgets the key and asks once more.

    Args:
        message: The problem.
        keys: The keys with such a state, as far as they are known.
    """

    def __init__(self, message: str, keys: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.keys = tuple(keys)
