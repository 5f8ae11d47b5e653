"""The page: its head, the choice of a view, and its parts. All of it works without the script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..operations.times import span_text, time_json
from .assets import asset_url
from .data import DashboardData
from .markup import Content, Markup, tag
from .parts import bans_part, clients_part, kinds_of, overrides_part, rules_part, state_part, traffic_part
from .tables import code_text
from .view import View

_TITLE: Final = "Rate limits"
_RANGES: Final = {"hour": "Hour", "day": "Day", "week": "Week", "year": "Year"}
_PARTS: Final[tuple[tuple[str, str, Callable[[DashboardData], Content]], ...]] = (
    ("traffic", "Traffic", traffic_part),
    ("clients", "Top clients", clients_part),
    ("bans", "Bans", bans_part),
    ("overrides", "Overrides", overrides_part),
    ("rules", "Rules", rules_part),
)
"""The parts below the choices: their id, title and content."""


def page(data: DashboardData) -> str:
    """Return the whole page."""
    sections = [_section(name, title, show(data)) for name, title, show in _PARTS]
    main = tag("main", _part("state", state_part(data)), _choices(data), *sections, id="main")
    return _document(_TITLE, _header(data), main, _footer(data), tag("p", class_="hidden", role="status", id="news"))


def closed_page(has_check: bool) -> str:
    """Return the page for clients that may not see the dashboard."""
    shown = (
        [tag("p", "You may not see it. If you are staff, sign in to this website first.")]
        if has_check
        else [
            tag("p", "The log of the application has the password, which changes with each start."),
            tag("p", code_text("To open it for others, pass `allow`, a function of the request:")),
            tag("pre", tag("code", "dashboard(limiter, allow=lambda request: request.user.is_staff)")),
        ]
    )
    return _document("Closed", tag("main", tag("h1", "This dashboard is closed"), *shown, class_="message"))


def problem_page(text: str) -> str:
    """Return the page for a view that cannot be shown."""
    title, back = "Cannot show this view", tag("p", tag("a", "Show the last day", href="?"))
    return _document(title, tag("main", tag("h1", title), tag("p", text, class_="problem"), back, class_="message"))


def _document(title: str, *content: Content) -> str:
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("link", rel="icon", href=asset_url("icon.svg")),
        *(tag("link", rel="stylesheet", href=asset_url(name)) for name in ("uPlot.min.css", "dashboard.css")),
        *(tag("script", src=asset_url(name), defer=True) for name in ("uPlot.iife.min.js", "dashboard.js")),
    ]
    return f"<!doctype html>\n{tag('html', tag('head', *head), tag('body', *content), lang='en')}\n"


def _header(data: DashboardData) -> Markup:
    skip = tag("a", "Skip to the content", href="#main", class_="skip")
    at = time_json(data.now)
    updated = _part("updated", ["Updated ", tag("time", at[11:19], datetime=at), " UTC"])
    failure = tag("span", "The page cannot be updated now", class_="failure", id="failure", hidden=True)
    pause = tag("button", "Pause updates", type="button", id="pause", hidden=True) if data.view.is_live else None
    return tag("header", skip, tag("h1", _TITLE), tag("div", failure, updated, pause, class_="update"))


def _choices(data: DashboardData) -> Markup:
    view = data.view
    ranges = [
        _tab(title, view.link(range=name, start="", end=""), name == view.shown_range)
        for name, title in _RANGES.items()
    ]
    kinds = [
        _tab(f"{title} {size:,}" if size else title, view.link(kind=kind, name=None), kind == view.kind)
        for kind, title, size in kinds_of(data)
    ]
    return tag(
        "div",
        tag("nav", *ranges, class_="tabs", aria_label="Time range"),
        _dates(view),
        tag("nav", *kinds, class_="tabs", aria_label="Counts of"),
        _names(data),
        class_="choices",
    )


def _tab(title: str, href: str, is_current: bool) -> Markup:
    return tag("a", title, href=href, aria_current="true" if is_current else None)


def _dates(view: View) -> Markup:
    fields = [
        tag("label", title, tag("input", type="date", name=name, value=value[:10], required=name == "from"))
        for title, name, value in (("From ", "from", view.start), ("to ", "to", view.end))
    ]
    return tag("form", *fields, *_hidden_fields(view, "range", "from", "to"), tag("button", "Show"), class_="dates")


def _names(data: DashboardData) -> Content:
    view, names = data.view, data.traffic.get("names", [])
    if not names and view.name is None:
        return None
    options = tag("datalist", *(tag("option", value=name) for name in names), id="names")
    field = tag("input", name="name", value=view.name, list="names", autocomplete="off", required=True)
    everything = tag("a", "Show all", href=view.link(name=None)) if view.name is not None else None
    label = tag("label", f"{view.kind.capitalize()} ", field)
    return tag("form", label, options, *_hidden_fields(view, "name"), tag("button", "Show"), everything, class_="names")


def _hidden_fields(view: View, *without: str) -> list[Content]:
    """Return the fields of a view that a form keeps."""
    return [tag("input", type="hidden", name=name, value=value) for name, value in view.fields if name not in without]


def _section(name: str, title: str, content: Content) -> Markup:
    heading = tag("h2", title, id=f"{name}-title")
    return tag("section", heading, _part(name, content), aria_labelledby=f"{name}-title", id=f"section-{name}")


def _part(name: str, content: Content) -> Markup:
    """Return a part that the script replaces when it updates the page."""
    return tag("div", content, data_part=name, id=f"part-{name}")


def _footer(data: DashboardData) -> Markup:
    view, traffic = data.view, data.traffic
    step = f" Steps of {span_text(traffic['step'])}." if traffic.get("step") else ""
    text = f"Times are in UTC.{step} The counts of other processes are up to 15 seconds old. "
    return tag("footer", tag("p", text, tag("a", "JSON", href=view.link("data.json"))))
