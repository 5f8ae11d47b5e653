"""The HTML of the dashboard. Jinja escapes every text, and shows characters that are not printable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from ..errors import MissingExtraError
from ..operations.answer import span_text
from .data import LABELS
from .view import RANGES, View

if TYPE_CHECKING:
    from jinja2 import Environment

STATIC: Final = "static/"
ASSETS: Final = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "uPlot.min.css": "text/css; charset=utf-8",
}
_MAX_CELL: Final = 300
"""Longer texts are cut on the page. JSON contains the full text."""


def dashboard_page(data: Mapping[str, Any], view: View, token: str | None = None, result: str = "") -> bytes:
    """Return the page. With a token, it has forms; a result is that of the last one."""
    return _render("dashboard.html", data=data, view=view, token=token, result=result)


def message_page(title: str, problem: str = "", back: str = "?", has_check: bool = False) -> bytes:
    """Return the page for a problem, or for clients that may not see the dashboard."""
    link = "Show the last day" if back == "?" else "Back to the dashboard"
    return _render("message.html", title=title, problem=problem, back=back, link=link, has_check=has_check)


@cache
def templates() -> Environment:
    """Return the templates of the pages.

    Raises:
        MissingExtraError: Jinja is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise MissingExtraError("the dashboard", "dashboard") from None
    loader = PackageLoader("ratelimit_mw.dashboard")
    found = Environment(autoescape=True, loader=loader, undefined=StrictUndefined, finalize=_printable)
    found.trim_blocks = found.lstrip_blocks = True
    found.globals |= {"asset_url": asset_url, "LABELS": LABELS, "RANGES": RANGES}
    found.filters |= {"at": value_at, "shown": shown, "key": row_key, "span": span_text}
    return found


def asset_url(name: str) -> str:
    """Return the URL of a file, relative to the page. It has a digest, so browsers may keep the file."""
    return f"{STATIC}{name}?v={blake2b(read_asset(name), digest_size=6).hexdigest()}"


@cache
def read_asset(name: str) -> bytes:
    """Return the content of a file of the page."""
    return files(__package__).joinpath(STATIC, name).read_bytes()


def _render(name: str, **values: Any) -> bytes:
    return templates().get_template(name).render(values).lstrip().encode()


def value_at(row: Mapping[str, Any], path: str) -> Any:
    """Return a value of JSON by its path, such as ``store.name``; None for one that is not there."""
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def shown(value: Any, form: str) -> str:
    """Return the text of a value of JSON. The script has the same forms.

    >>> shown(1200, "number"), shown(0.286, "percent"), shown("2026-01-01T12:00:30+00:00", "time")
    ('1,200', '28.6%', '2026-01-01 12:00:30')
    """
    if value in (None, ""):
        return ""
    match form:
        case "number":
            return f"{value:,}"
        case "percent":
            return f"{value:.1%}"
        case "time":
            return f"{value[:10]} {value[11:19]}"
        case "clock":
            return str(value[11:19])
        case "lines":
            return _lines_html(map(_cut, value))
    return _cut(value)


def row_key(row: Mapping[str, Any], names: str) -> str:
    """Return the text by which the script finds the row again."""
    return " ".join(str(row.get(name) or "") for name in names.split())


def visible(text: str) -> str:
    r"""Return a text in which control characters and marks of the text direction are shown.

    >>> print(visible("a\u202eb\n"))
    a\u202eb\u000a
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    return character if character.isprintable() else f"\\u{ord(character):04x}"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}\N{HORIZONTAL ELLIPSIS}"


def _lines_html(lines: Iterable[str]) -> str:
    """Return lines below each other, as HTML."""
    from markupsafe import Markup, escape

    return Markup("\n").join(escape(visible(line)) for line in lines)


def _printable(value: Any) -> Any:
    """Return what the template writes for a value. HTML has ``__html__``."""
    return value if hasattr(value, "__html__") else visible(str(value))
