"""``ratelimit-mw reset``: reset the counts of one client, so that it has the whole limit again."""

import difflib
from collections.abc import Iterator
from typing import Any, Final

import click

from ..algorithms.limit import client_of, rule_of
from ..clock import SECOND
from ..decision import Decision
from ..keys.features import Features, words_of
from ..limiter.json_forms import words_in
from ..limiter.limiter import Limiter
from ..limiter.times import span_text
from ..rules.compiled import CompiledRule
from ..stores import Store
from .application import SourceCommand
from .clients import checked_client, checked_rule, command_line, features_argument, open_limiter
from .key_search import missing_in_tables, secret_hint, states_of
from .output import Cell, Failure, command, json_option, note, print_json, print_table
from .rows import ALL_CLIENTS, Rows, next_request
from .source import Source

_MOST_NEAR: Final = 3


@command(
    "ratelimit-mw reset ratelimit.toml login ip=192.0.2.7",
    "ratelimit-mw reset ratelimit.toml api user=alice --json",
    "ratelimit-mw reset ratelimit.toml --key '1|api|sliding-window|1m|{user=alice}'",
    "ratelimit-mw reset --app shop:app login ip=192.0.2.7",
    cls=SourceCommand,
)
@click.argument("rule", required=False)
@features_argument
@click.option("--key", help="The key of the client in the store, instead of RULE and NAME=VALUE.")
@json_option
def reset(source: Source, rule: str | None, features: dict[str, Any], key: str | None, as_json: bool) -> None:
    """Reset the counts of one client under all limits of RULE, and lift its ban.

    NAME=VALUE are the features of the key of the rule, such as ip=192.0.2.7. The command shows what it has reset. The
    exit code is 1 when nothing was counted for the client: then look for a mistake in a value.
    """
    if (rule is None) == (key is None):
        raise click.UsageError("name either RULE with the features of its key, or --key")
    if key is not None and not rule_of(key):
        raise click.BadParameter(f"expected a key as `inspect --json` shows it; got {key!r}", param_hint="'--key'")
    counted: Features = features
    if key:
        compiled = checked_rule(source, rule_of(key))
    else:
        compiled, counted = checked_client(source, rule or "", features, "reset")
    with open_limiter(source) as limiter:
        known = [] if key else states_of(limiter, compiled, counted)
        key = key or _key_of(compiled, counted)
        every = {each.key: each for each in (*limiter.inspect_key(key), *known)}
        limiter.reset_key(key)
        decisions = list(every.values())
        hint = "" if decisions else _hint(source, limiter, compiled, key)
    is_lowest = missing_in_tables(compiled, features) if rule else compiled.tables or compiled.looks_up
    rows = Rows(source, features, [compiled.name] if is_lowest else ())
    if as_json:
        print_json({"reset": bool(decisions), "keys": list(map(rows.as_json, decisions))})
    else:
        print_table(f"Reset in {source.title}", [_row(decision, rows) for decision in decisions])
    if not decisions:
        client = " ".join(words_of(features)) or client_of(key) or ALL_CLIENTS
        note(f"rule {compiled.name} has no counts of {client}. Check the spelling of the values{hint}")
        raise click.exceptions.Exit(1)
    note(*notes_on_workers(source, compiled))


def _row(decision: Decision, rows: Rows) -> dict[str, Cell]:
    return {
        "rule": decision.rule,
        "client": rows.client(decision) or ALL_CLIENTS,
        "limit": decision.source.text,
        "consumed": "" if decision.banned else f"{decision.limit - decision.remaining:,} of {decision.limit:,}",
        "before": next_request(decision),
    }


def _key_of(rule: CompiledRule, features: Features) -> str:
    """Return one of the keys of a client. ``Failure`` for a client without limits."""
    limits = rule.all_limits()
    if not limits:
        raise Failure(f"the function of rule {rule.name!r} returns no limits for this client, so nothing is counted")
    return f"{limits[0].prefix}{rule.key.build(features)}"


def _hint(source: Source, limiter: Limiter, rule: CompiledRule, key: str) -> str:
    """Return the clients that are similar to one without counts, or how to list all."""
    if hint := secret_hint(source, [rule]):
        return f". {hint}"
    if type(limiter.store).list_keys is Store.list_keys:
        return ""
    clients = {" ".join(words_in(rule, each.key) or []) for each in limiter.inspect(rule.name).decisions}
    near = difflib.get_close_matches(" ".join(words_in(rule, key) or []), clients, _MOST_NEAR)
    listing = command_line(source, "inspect", f"--rule={rule.name}")
    return f". Similar: {' or '.join(near)}" if near else f". To see all clients: {listing}"


def notes_on_workers(source: Source, rule: CompiledRule) -> Iterator[str]:
    """Yield what workers still hold of a key that a command has changed."""
    if source.settings.rejection_cache:
        span = span_text(source.settings.rejection_cache / SECOND)
        yield f"your workers may repeat their last rejection for up to {span} (rejection_cache)"
    if rule.source.consistency != "exact":
        yield f'rule {rule.name} has consistency = "{rule.source.consistency}": each worker still has counts of its own'
