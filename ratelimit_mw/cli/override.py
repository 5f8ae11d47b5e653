"""``ratelimit-mw override``: change the limits of one client while the application runs."""

from typing import Any

import click

from ..clock import SECOND
from ..keys.features import Features, words_of
from ..limiter.json_forms import client_json, client_text, override_json
from ..limiter.times import span_text, time_text
from ..rules.client_key import client_key
from ..rules.overrides import ClientOverride
from .application import SourceCommand
from .clients import checked_client, checked_rule, features_argument, open_limiter, read_duration, read_features
from .key_search import secret_hint
from .output import Cell, command, json_option, note, parsed, print_json, print_table
from .rows import ALL_CLIENTS
from .source import Source


@click.group()
def override() -> None:
    """Change the limits of one client while your application runs.

    The store keeps these overrides. All workers apply a change within reload_interval, 2 seconds by default.
    """


def _read_words(texts: tuple[str, ...]) -> tuple[dict[str, Any], str]:
    """Return the features, and the limits: the word without ``=``."""
    limits = [text for text in texts if "=" not in text]
    if not limits:
        raise click.BadParameter(f'expected LIMITS after {texts[-1]!r}, such as "1000/minute" or unlimited')
    if len(limits) > 1:
        raise click.BadParameter(f"expected one word for LIMITS. Write '{' '.join(limits)}' in quotes")
    return read_features(text for text in texts if "=" in text), limits[0]


@command(
    "ratelimit-mw override set ratelimit.toml api user=acme 1000/minute --for 7d",
    "ratelimit-mw override set ratelimit.toml api user=acme '1000/minute; 20000/day'",
    "ratelimit-mw override set ratelimit.toml api ip=192.0.2.7 unlimited --for 1h --json",
    "ratelimit-mw override set --app shop:app login ip=192.0.2.7 50/minute --for 1d",
    cls=SourceCommand,
    name="set",
)
@click.argument("rule")
@click.argument("words", metavar="NAME=VALUE... LIMITS", nargs=-1, required=True, callback=parsed(_read_words))
@click.option("--for", "seconds", metavar="DURATION", callback=read_duration,
              help="The length of the override, such as 12h or 7d. Default: no end.")  # fmt: skip
@json_option
def set_override(
    source: Source, rule: str, words: tuple[dict[str, Any], str], seconds: str | None, as_json: bool
) -> None:
    """Change the limits of one client: LIMITS replace all limits that RULE has for it.

    NAME=VALUE are the features of the key of the rule, such as user=acme. LIMITS are one word, such as 1000/minute,
    "1000/minute; 20000/day", or unlimited. An earlier override of the client is replaced.
    """
    features, limits = words
    _, counted = checked_client(source, rule, features, "override set", limits)
    with open_limiter(source) as limiter:
        each = limiter.set_override(rule, counted, limits, seconds)
    if as_json:
        print_json(override_json(each, source.rules))
    else:
        _print(source, [each])
    if "concurrent" in each.limits:
        note("`ratelimit-mw serve` cannot decide concurrent limits: there, the client keeps the limits of the rule")
    _note_interval(source)


@command(
    "ratelimit-mw override remove ratelimit.toml api user=acme",
    "ratelimit-mw override remove --app shop:app login ip=192.0.2.7 --json",
    cls=SourceCommand,
    name="remove",
)
@click.argument("rule")
@features_argument
@json_option
def remove_override(source: Source, rule: str, features: dict[str, Any], as_json: bool) -> None:
    """Remove the override of one client, so that it has the limits of RULE again.

    NAME=VALUE are the features of the key of the rule. The exit code is 1 when the client has no override.
    """
    _, counted = checked_client(source, rule, features, "override remove")
    with open_limiter(source) as limiter:
        is_removed = limiter.remove_override(rule, counted)
    if as_json:
        print_json(client_json(rule, features, removed=is_removed))
    client = " ".join(words_of(features)) or ALL_CLIENTS
    if not is_removed:
        note(f"rule {rule} has no override for {client}. Check the spelling of the values")
        raise click.exceptions.Exit(1)
    note(f"override of {client} removed from rule {rule}")
    _note_interval(source)


@command(
    "ratelimit-mw override list ratelimit.toml",
    "ratelimit-mw override list ratelimit.toml api user=acme",
    "ratelimit-mw override list --app shop:app --json",
    cls=SourceCommand,
    name="list",
)
@click.argument("rule", required=False)
@features_argument
@json_option
def list_overrides(source: Source, rule: str | None, features: dict[str, Any], as_json: bool) -> None:
    """Show all overrides, the overrides of RULE, or the override of one client.

    Overrides that have ended are not shown.
    """
    key = _key_of(source, rule, features) if rule else None
    with open_limiter(source) as limiter:
        every = limiter.overrides()
    shown = [each for each in every if rule in (None, each.rule) and key in (None, each.key)]
    if as_json:
        print_json({"overrides": [override_json(each, source.rules) for each in shown]})
    else:
        _print(source, shown)
    if not shown:
        note("there are no overrides" if not every else "there is no such override")
    elif key is None and (hint := secret_hint(source, source.rules.rules)):
        note(f"{hint}. To find a client, write its features: override list ... RULE NAME=VALUE")


@command(
    "ratelimit-mw override clear ratelimit.toml",
    "ratelimit-mw override clear --app shop:app",
    cls=SourceCommand,
    name="clear",
)
@json_option
def clear_overrides(source: Source, as_json: bool) -> None:
    """Remove all overrides, even when their record in the store is damaged."""
    with open_limiter(source) as limiter:
        limiter.clear_overrides()
    if as_json:
        print_json({"cleared": True})
    note("all overrides removed")
    _note_interval(source)


for _each in (set_override, list_overrides, remove_override, clear_overrides):
    override.add_command(_each)


def _key_of(source: Source, name: str, features: Features) -> str | None:
    """Return the key of a client; None without features."""
    if not features:
        return None if checked_rule(source, name).source.entries else ""
    return client_key(*checked_client(source, name, features, "override list"))


def _print(source: Source, overrides: list[ClientOverride]) -> None:
    print_table(f"Overrides in {source.title}", [_row(source, each) for each in overrides])


def _row(source: Source, each: ClientOverride) -> dict[str, Cell]:
    is_known = each.rule in source.rules.by_name
    return {
        "rule": each.rule if is_known else f"{each.rule} (not in {source.title.partition(',')[0]})",
        "client": client_text(each.key, each.rule, source.rules) or ALL_CLIENTS,
        "limits": each.limits.split("; "),
        "until": "no end" if each.until is None else time_text(each.until),
    }


def _note_interval(source: Source) -> None:
    interval = source.settings.reload_interval
    if interval:
        note(f"your workers apply the change within {span_text(interval / SECOND)} (reload_interval)")
    else:
        note("reload_interval = 0: your workers apply the change when they start")
