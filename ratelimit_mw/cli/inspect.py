"""``ratelimit-mw inspect``: show the clients in the store of an application, and the rest of their limits."""

from collections.abc import Collection
from itertools import islice
from typing import Any, Final

import click
from rich.progress import TextColumn

from ..decision import Decision
from ..rules.compiled import CompiledRule
from .application import SourceCommand
from .clients import as_counted, check_used, checked_rule, open_limiter, read_features, read_words
from .key_search import KeySearch, secret_hint
from .output import Failure, command, json_option, note, print_json, print_table, print_text, progress
from .rows import Rows
from .source import Source

_LINES: Final = 10
"""The maximum number of commands to copy after a table."""


@command(
    "ratelimit-mw inspect ratelimit.toml --feature ip=192.0.2.7",
    "ratelimit-mw inspect ratelimit.toml --rejected",
    "ratelimit-mw inspect ratelimit.toml --rule login --prefix ip=192.0.2.",
    "ratelimit-mw inspect ratelimit.toml --rule login --limit 100000 --json",
    "ratelimit-mw inspect --app shop:app --feature user=alice",
    "ratelimit-mw inspect --app shop:app --rejected --json",
    cls=SourceCommand,
)
@click.option("--rule", "name", metavar="NAME", help="Show only the clients of this rule.")
@click.option("--feature", "features", metavar="NAME=VALUE", multiple=True, callback=read_words,
              help="Show only the client with this value, such as ip=192.0.2.7. Repeat it to name more.")  # fmt: skip
@click.option(
    "--prefix",
    default="",
    metavar="TEXT",
    help="Show only clients with a value that starts with this text, such as ip=192.0.2.",
)
@click.option("--rejected", is_flag=True, help="Show only clients whose next request would be rejected.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True,
              help="Maximum number of keys to show.")  # fmt: skip
@json_option
def inspect(
    source: Source, name: str | None, features: dict[str, Any], prefix: str, rejected: bool, limit: int, as_json: bool
) -> None:
    """Show the clients in the store of your application, and how much of each limit remains.

    The command shows all clients that have counts, or the one that you name. It consumes nothing, and it prints the
    command that resets a rejected client. The exit code is 1 when no client matches.

    If a function returns the limits of a rule, name all features of its key to see a client.
    """
    rules = [checked_rule(source, name)] if name else source.rules.rules
    check_used(source, rules, features)
    if prefix:
        _check_prefix(source, rules, prefix)
    with open_limiter(source) as limiter, progress("reading keys", None, TextColumn("{task.completed:,}")) as update:
        search = KeySearch(limiter, source, rules, as_counted(source, features), prefix, lambda: update(advance=1))
        decisions = list(islice(search.decisions(rejected), limit + 1))
    has_more = len(decisions) > limit
    decisions = sorted(decisions[:limit], key=_order)
    rows = Rows(source, features, search.lowest)
    notes = list(search.notes())
    if as_json:
        print_json({"keys": list(map(rows.as_json, decisions)), "has_more": has_more, "notes": notes})
    else:
        _print(source, rows, decisions)
    note(*notes)
    if has_more:
        note(f"there are more than {limit:,} keys. Raise --limit, or use --rule, --feature or --prefix")
    if not decisions:
        hint = secret_hint(source, rules) if features else ""
        other = "other " * bool(search.left_out)
        note(f"no {other}client {'is rejected' if rejected else 'matches'} now. {hint}".removesuffix(". "))
        raise click.exceptions.Exit(1)


def _check_prefix(source: Source, rules: Collection[CompiledRule], prefix: str) -> None:
    """Raise ``Failure`` for a prefix that no client can have."""
    start = read_features([prefix])
    check_used(source, rules, start)
    if any(map(source.settings.secret.covers, start)):
        name = prefix.partition("=")[0]
        raise Failure(f"the keys have digests of {name}, so --prefix finds no client. Use --feature {name}=...")


def _order(decision: Decision) -> tuple[object, ...]:
    """Put rejected clients first, and the limits of one client together."""
    ends = decision.allowed or decision.shadow, decision.allowed
    return *ends, decision.rule, decision.client, decision.quota.period_us


def _print(source: Source, rows: Rows, decisions: list[Decision]) -> None:
    print_table(source.title, list(map(rows.row, decisions)))
    lines = list(dict.fromkeys(rows.reset_line(each) for each in decisions if not (each.allowed or each.shadow)))
    for line in lines[:_LINES]:
        print_text(f"To reset: {line}")
    if len(lines) > _LINES:
        note(f"{len(lines) - _LINES:,} more clients are rejected. Their commands are in the output of --json")
