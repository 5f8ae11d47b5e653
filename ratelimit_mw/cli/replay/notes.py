"""Shared output of the commands on a log: its contents, and how its replay differs from the application."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from ...operations.overview import describe_amendments
from ...stores.url import redacted_url
from ..log_formats import LineParser
from ..logs import format_text
from ..output import Failure, count_text
from ..source import Source
from .report import ReplayReport
from .simulation import attributes_of, is_logged

OF_ROUTES: Final = ("endpoint", "view")
"""The features that only the routes of an application give."""
limit_option = click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True,
                            help="Maximum number of clients to show.")  # fmt: skip


def show_log(period: str, counts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the requests of a log are: their times, formats and clients."""
    yield period
    yield format_text(counts["formats"])
    yield f"{count_text(counts['requests'], 'request')} from {count_text(counts['clients'], 'client')}"


def check_routes(source: Source, fields: Mapping[str, str]) -> None:
    """Raise ``Failure`` for rules of a file that need the routes of an application."""
    by_feature = source.rules_by_feature() if source.overview.is_file else {}
    users = {name: rules for name, rules in by_feature.items() if name in OF_ROUTES and name not in fields}
    views = [rule.name for rule in source.rules.rules if any(rule.source.matches.views)]
    users |= {"view": views} if views and source.overview.is_file else {}
    for name, rules in users.items():
        hint = "Only an application knows its routes: ratelimit-mw replay --app MODULE:APP"
        raise Failure(f"a log does not contain the {name}, which {', '.join(rules)} needs. {hint}")


def notes_on(source: Source, parser: LineParser, report: ReplayReport) -> Iterator[str]:
    """Yield how a replay differs from the application: its store and slots, missing features, and shared counts."""
    settings, rules, by_feature = source.settings, source.rules.rules, source.rules_by_feature()
    if (scheme := redacted_url(settings.store).partition(":")[0]) != "memory":
        yield f"counting in memory, not in {scheme}"
    yield from describe_amendments(settings.amendments) if source.overview.is_file else ()
    if marked := [rule.name or f"rule-{i + 1}" for i, rule in enumerate(settings.rules) if rule.is_marked]:
        yield f"the log does not contain marks, so no request is marked for {', '.join(marked)}"
    if slots := [rule.name for rule in rules if any(limit.quota.concurrent for limit in rule.all_limits())]:
        yield f"requests end at once in the replay, so concurrency limits reject none for {', '.join(slots)}"
    attributes = attributes_of(rules)
    captured = {(rule.name, name) for rule in rules for name in rule.source.captures.names}
    for feature, all_names in by_feature.items():
        names = [name for name in all_names if (name, feature) not in captured]
        for part in dict.fromkeys(attributes.get(feature, [feature])) if names else ():
            is_of_route = part in OF_ROUTES or part.startswith("path:")
            if is_of_route and not source.overview.is_file:
                continue
            if not is_logged(part) and part not in parser.found:
                yield f"the log does not contain {part}: missing in every request for {', '.join(names)}"
    requests, proxies = report.unseen()
    if proxies and "ip" in by_feature:
        shown = f"{proxies[0]}{' and other trusted proxies' if proxies[1:] else ', a trusted proxy,'}"
        header, users = report.simulation.client.header.removeprefix("header:"), ", ".join(by_feature["ip"])
        yield (
            f"{count_text(requests, 'request')} of {shown} have no address in {header}: all clients behind a proxy"
            f" share one count for {users}"
        )
    if report.simulation.is_full:
        keys = report.simulation.max_keys
        yield f"more than {keys:,} keys at once: some clients share counts, and may be rejected too early"
