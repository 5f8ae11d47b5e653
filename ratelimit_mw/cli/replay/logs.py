"""The access logs of a command: its options, its progress bar, and notes about what a log does not contain."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click
from rich.progress import TaskProgressColumn, TextColumn, TimeRemainingColumn

from ...rules.describe import describe_amendments
from ...stores import redacted_url
from ..json_lines import LineParser, check_field
from ..log_files import LogFiles, size_of
from ..output import count_text, parsed, progress
from ..source import Source
from .report import REQUESTS, ReplayReport
from .simulation import attributes_of, is_logged

_COLUMNS: Final = (TaskProgressColumn(), TextColumn("{task.fields[lines]:,} lines"), TimeRemainingColumn())


def _check_fields(texts: tuple[str, ...]) -> dict[str, str]:
    return dict(map(check_field, texts))


field_option = click.option("--field", "fields", metavar="NAME=FIELD", multiple=True, callback=parsed(_check_fields),
                            help="The field of JSON lines for a part of the request, or for a feature: time=...,"
                                 " ip=..., user=account.id, plan=account.plan. Repeat it for several"
                                 " fields.")  # fmt: skip
limit_option = click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True,
                            help="Maximum number of clients to show.")  # fmt: skip


@contextmanager
def open_logs(paths: tuple[str, ...], parser: LineParser, action: str = "replaying") -> Iterator[LogFiles]:
    """Yield the logs to iterate over, with a bar on a terminal."""
    with progress(action, size_of(paths) or None, *_COLUMNS, lines=0) as update:
        yield LogFiles(paths, parser, lambda lines, position: update(lines=lines, completed=position))


def notes_on_replay(source: Source) -> Iterator[str]:
    """Yield how a replay differs from the application."""
    settings = source.settings
    scheme = redacted_url(settings.store).partition(":")[0]
    if scheme != "memory":
        yield f"counting in memory, not in {scheme}"
    yield from describe_amendments(settings.amendments)
    if marked := [rule.name or f"rule-{i + 1}" for i, rule in enumerate(settings.rules) if rule.is_marked]:
        yield f"the log does not contain marks, so no request is marked for {', '.join(marked)}"
    if slots := [
        rule.name for rule in source.rules.rules if any(limit.quota.concurrent for limit in rule.all_limits())
    ]:
        yield f"requests end at once in the replay, so concurrency limits reject none for {', '.join(slots)}"


def notes_on_logs(source: Source, parser: LineParser, report: ReplayReport) -> Iterator[str]:
    """Yield what the logs did not contain, and which counts are not exact."""
    attributes = attributes_of(source.rules.rules)
    for feature, rules in source.rules_by_feature().items():
        for name in dict.fromkeys(attributes.get(feature, [feature])):
            if name == "endpoint" and name not in parser.found:
                yield f"the log does not contain routes, so all paths of a rule are one endpoint for {', '.join(rules)}"
            elif not is_logged(name) and name not in parser.found:
                yield f"the log does not contain {name}: missing in every request for {', '.join(rules)}"
    clients, by_feature = report.clients.rows, source.rules_by_feature()
    proxies = [name for name in clients if report.simulation.client.is_proxy(name)] if "ip" in by_feature else []
    if proxies:
        requests = count_text(sum(clients[name][REQUESTS] for name in proxies), "request")
        shown = f"{proxies[0]}{' and other trusted proxies' if proxies[1:] else ', a trusted proxy,'}"
        yield (
            f"{requests} of {shown} have no address in {report.simulation.client.header.removeprefix('header:')}:"
            f" all clients behind a proxy share one count for {', '.join(by_feature['ip'])}"
        )
    if report.out_of_order:
        yield f"{report.out_of_order:,} requests are too far out of order. Pass each log as a separate file"
    if not report.clients.is_complete:
        most = report.clients.most
        yield f"more than {most:,} clients: only the counts of clients with the most rejections are exact"
    if report.simulation.is_full:
        keys = report.simulation.max_keys
        yield f"more than {keys:,} keys at once: some clients share counts, and may be rejected too early"
