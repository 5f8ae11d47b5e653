"""``ratelimit-mw ban``, ``unban`` and ``bans``: reject a client for a time, lift that, and list who is banned."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import click
from rich.progress import TextColumn

from ..decision import Decision
from ..keys.features import words_of
from ..limiter.json_forms import client_json
from ..limiter.limiter import Limiter
from ..limiter.times import span_text, time_json, time_text
from .application import SourceCommand
from .clients import checked_client, checked_rule, features_argument, open_limiter, read_duration
from .output import command, json_option, note, print_json, print_table, print_text, progress
from .reset import notes_on_workers
from .rows import ALL_CLIENTS, Rows
from .source import Source


@command(
    "ratelimit-mw ban ratelimit.toml login ip=192.0.2.7",
    "ratelimit-mw ban ratelimit.toml api user=alice --for 7d --json",
    "ratelimit-mw ban --app shop:app login ip=192.0.2.7 --for 1h",
    cls=SourceCommand,
)
@click.argument("rule")
@features_argument
@click.option("--for", "seconds", metavar="DURATION", callback=read_duration,
              help="The length of the ban, such as 30m or 7d. Default: `for` of the rule.")  # fmt: skip
@json_option
def ban(source: Source, rule: str, features: dict[str, Any], seconds: str | None, as_json: bool) -> None:
    """Ban one client from RULE now. The ban replaces an active one.

    NAME=VALUE are the features of the key, such as ip=192.0.2.7. The rule must have the option ban.
    """
    compiled, counted = checked_client(source, rule, features, "ban")
    name = compiled.name
    with open_limiter(source) as limiter:
        until = limiter.ban(name, counted, seconds)
    client = " ".join(words_of(counted))
    if as_json:
        print_json(client_json(name, counted, until=time_json(until)))
    else:
        print_text(f"{client} is banned from rule {name} until {time_text(until)}")


@command(
    "ratelimit-mw unban ratelimit.toml login ip=192.0.2.7",
    "ratelimit-mw unban --app shop:app login ip=192.0.2.7 --json",
    cls=SourceCommand,
)
@click.argument("rule")
@features_argument
@json_option
def unban(source: Source, rule: str, features: dict[str, Any], as_json: bool) -> None:
    """Lift the ban of one client from RULE. Its counts stay: see reset.

    The rejections of the client and its earlier bans are forgotten. The exit code is 1 when the client was not banned.
    """
    compiled, counted = checked_client(source, rule, features, "unban")
    name = compiled.name
    with open_limiter(source) as limiter:
        was_banned = limiter.unban(name, counted)
    client = " ".join(words_of(counted))
    if as_json:
        print_json(client_json(name, counted, was_banned=was_banned))
    elif was_banned:
        print_text(f"{client} is no longer banned from rule {name}")
    if not was_banned:
        note(f"{client} was not banned from rule {name}. Check the spelling of the values")
        raise click.exceptions.Exit(1)
    note(*notes_on_workers(source, compiled))


@command(
    "ratelimit-mw bans ratelimit.toml",
    "ratelimit-mw bans ratelimit.toml --rule login --json",
    "ratelimit-mw bans --app shop:app",
    cls=SourceCommand,
)
@click.option("--rule", "name", metavar="NAME", help="Show the bans of this rule only.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True,
              help="Maximum number of bans to show.")  # fmt: skip
@json_option
def bans(source: Source, name: str | None, limit: int, as_json: bool) -> None:
    """List the clients that are banned now, with the end of each ban."""
    rule = checked_rule(source, name).name if name else None
    with open_limiter(source) as limiter, progress("reading keys", None, TextColumn("page {task.completed:,}")) as tick:
        found = list(islice(_bans(limiter, rule, lambda: tick(advance=1)), limit + 1))
    shown = sorted(found[:limit], key=lambda each: (each.rule, each.client))
    rows = Rows(source, {})
    if as_json:
        print_json({"bans": list(map(rows.as_json, shown)), "has_more": len(found) > limit})
    else:
        print_table(f"Banned in {source.title}", [_row(each, rows) for each in shown])
    if len(found) > limit:
        note(f"there are more bans than --limit {limit}. Raise it, or use --rule")
    if not found:
        note("no client is banned now")


def _bans(limiter: Limiter, rule: str | None, tick: Any) -> Iterator[Decision]:
    place: str | None = ""
    while place is not None:
        decisions, place = limiter.bans(rule, place)
        tick()
        yield from decisions


def _row(decision: Decision, rows: Rows) -> dict[str, Any]:
    left = decision.retry_after or 0.0
    return {
        "rule": decision.rule,
        "client": rows.client(decision) or ALL_CLIENTS,
        "until": time_text(decision.at, left),
        "left": span_text(left),
        "mode": "shadow" if decision.shadow else "enforce",
    }
