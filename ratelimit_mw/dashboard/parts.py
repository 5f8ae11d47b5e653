"""The parts of the page: its state, traffic, clients, bans, overrides and rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from .curves import NO_RULE, curve_cards, name_of
from .data import DashboardData
from .markup import Content, tag
from .tables import (
    TableColumn,
    code_text,
    isolated,
    lines,
    moment,
    note,
    number,
    number_column,
    table,
    text_column,
)
from .view import View

_KINDS: Final = {"rule": "Rules", "endpoint": "Endpoints", "event": "Events"}
ALL_CLIENTS: Final = "all clients"
_CLIENTS: Final = {
    "rejected": "Most rejected",
    "shadow": "Would be rejected most",
    "allowed": "Most allowed",
    "count": "Most counted",
}
_CLIENT: Final = TableColumn("Client", lambda row: isolated(row["client"] or ALL_CLIENTS))
_UNTIL: Final = TableColumn("Until (UTC)", lambda row: moment(row["until"]) if row["until"] else "no end")
_OUTCOMES: Final = (
    number_column("Allowed", "allowed"),
    number_column("Rejected", "rejected"),
    TableColumn("Share rejected", lambda row: f"{row['share']:.1%}", is_number=True),
    number_column("Would be rejected", "shadow"),
    TableColumn("Share of these", lambda row: f"{row['shadow_share']:.1%}", is_number=True),
)


def state_part(data: DashboardData) -> Content:
    """The state of the store, in one line."""
    store = data.store
    is_well = store["reachable"] and not store["circuit_open"]
    word = "reachable" if is_well else "circuit open" if store["reachable"] else "unreachable"
    facts = [
        tag("span", tag("i", class_="dot"), word, class_=f"state {'good' if is_well else 'bad'}"),
        tag("span", "Store ", tag("code", store["name"])),
        tag("span", "On error ", tag("code", store["on_store_error"])),
        tag("span", tag("b", number(store["local_decisions"])), " decisions without the store"),
        tag("span", "Traffic log ", tag("code", store["traffic_log"])) if store["traffic_log"] else None,
        tag("span", "Settings ", tag("code", store["settings"])) if store["settings"] else None,
    ]
    problem = tag("p", store["error"], class_="problem") if store["error"] else None
    return [tag("p", *facts, class_="facts"), problem]


def traffic_part(data: DashboardData) -> Content:
    """The curves and the totals."""
    traffic, view = data.traffic, data.view
    if "curves" not in traffic:
        return _absent(traffic)
    if not traffic["totals"]:
        what = f"{view.name or NO_RULE!r}" if view.name is not None else "any request"
        return note(f"The log has no record of {what} in this time.")
    left_out = traffic["curves_left_out"]
    more = note(f"{left_out:,} more are not drawn. Choose one by its name.") if left_out else None
    return [curve_cards(traffic, view), more, _totals(traffic, view)]


def clients_part(data: DashboardData) -> Content:
    """The clients with the highest counts, where the view shows them."""
    clients, view = data.clients, data.view
    if "hidden" in clients:
        return note(clients["hidden"], " ", tag("a", "Show clients", href=view.link(clients=True)))
    if absent := _absent(clients):
        return absent
    kind = "event" if view.kind == "event" else "rule"
    columns = [
        _CLIENT,
        TableColumn(kind.capitalize(), lambda row: isolated(row[kind] or NO_RULE)),
        TableColumn("Requests", lambda row: number(row["total"], row["error"]), is_number=True),
    ]
    tables = [table(title, columns, clients[line]) for line, title in _CLIENTS.items() if clients.get(line)]
    shown: Content = tag("div", *tables, class_="columns") if tables else note("No client is recorded in this time.")
    hide = note(tag("a", "Hide clients", href=view.link(clients=False)))
    return [shown, hide]


def bans_part(data: DashboardData) -> Content:
    """The clients that are banned now."""
    columns = [_CLIENT, text_column("Rule", "rule"), _UNTIL, text_column("Mode", "mode")]
    bans = _listed(data.bans, "bans", "Clients that are banned now", columns, "No client is banned now.")
    more = note("There are more bans. The command ", tag("code", "ratelimit-mw bans"), " lists all of them.")
    return [bans, more if data.bans.get("has_more") else None]


def overrides_part(data: DashboardData) -> Content:
    """The clients that have other limits."""
    columns = [_CLIENT, text_column("Rule", "rule"), text_column("Limits", "limits"), _UNTIL]
    empty = "No client has limits of its own."
    return _listed(data.overrides, "overrides", "Clients with other limits", columns, empty)


def _listed(part: Mapping[str, Any], name: str, caption: str, columns: Iterable[TableColumn], empty: str) -> Content:
    """Return the table of a list, a note for an empty one, or why the part is not shown."""
    if absent := _absent(part):
        return absent
    return table(caption, columns, part[name], True) if part[name] else note(empty)


def rules_part(data: DashboardData) -> Content:
    """The rules, each with its place."""
    rules = data.rules["rules"]
    if not rules:
        return note("There are no rules.")
    names = [name for name in rules[0]["shown"] if name != "rule"]
    columns = [TableColumn("Rule", lambda row: isolated(row["name"]))]
    columns += [TableColumn(name.capitalize(), lambda row, name=name: lines(row["shown"][name])) for name in names]  # type: ignore[misc]
    columns += [
        text_column("On store error", "on_store_error"),
        TableColumn("Declared in", lambda row: tag("code", row["place"])),
    ]
    return table("The rules that apply now", columns, rules, True)


def kinds_of(data: DashboardData) -> list[tuple[str, str, int]]:
    """Return the kinds of the log with their titles and sizes. Rules are always among them."""
    kinds = data.traffic.get("kinds", {})
    return [(kind, title, kinds.get(kind, 0)) for kind, title in _KINDS.items() if kind == "rule" or kind in kinds]


def _totals(traffic: Mapping[str, Any], view: View) -> Content:
    """The totals of each rule or endpoint."""
    kind = view.kind
    name = TableColumn(
        kind.capitalize(), lambda row: tag("a", isolated(name_of(row, kind)), href=view.link(name=row[kind]))
    )
    if kind == "event":
        columns = [name, number_column("Count", "total")]
    else:
        columns = [
            name,
            *([text_column("Mode", "mode")] if kind == "rule" else []),
            number_column("Requests", "total"),
            *_OUTCOMES,
        ]
    left_out = traffic["totals_left_out"]
    more = note(f"{left_out:,} more are not listed. Choose one by its name.") if left_out else None
    return [table(f"Totals per {kind}", columns, traffic["totals"]), more]


def _absent(part: Mapping[str, Any]) -> Content:
    """Return why a part is not shown; None for a part that is."""
    if "error" in part:
        return tag("p", part["error"], class_="problem")
    return note(code_text(part["missing"])) if "missing" in part else None
