"""``ratelimit-mw check``: check the settings, and show the rules."""

from collections.abc import Iterator

import click

from ..errors import ConfigError, error_path
from ..http.client_ip import UNIX
from ..http.features import HINTS, FeatureReader
from ..http.functions import CheckedFunctions
from ..http.warnings import NO_RULES, NOT_ENABLED
from ..keys.ip import parse_network
from ..keys.key import PERSONAL
from ..operations import Answer, Line, Table
from ..operations.overview import describe_amendments, row_of
from ..stores import open_store
from ..stores.url import redacted_url
from .connect import FACT, NOTE, PROBLEM, examine
from .output import command, json_flag
from .source import Source, SourceCommand


@command(
    "ratelimit-mw check ratelimit.toml",
    "ratelimit-mw check pyproject.toml --json",
    "ratelimit-mw check --app shop:app --strict",
    "ratelimit-mw check --app shop:app --json",
    "ratelimit-mw check ratelimit.toml --connect",
    cls=SourceCommand,
)
@click.option("--strict", is_flag=True, help="Exit with code 1 if there are notes, too.")
@click.option("--connect", is_flag=True, help="Also examine the store, its servers, its clock and its workers.")
@json_flag
def check(source: Source, strict: bool, connect: bool) -> Answer:
    """Check the settings, and show the rules with notes about them.

    The store URL is checked, but no connection is opened. The exit code is 1 when the settings cannot be used, and when
    a rule rejects every request or never applies. It is also 1 when no route leads to a rule, and with --strict when
    there are notes.

    With --connect, the command opens the store, measures its round trip and its clock, and examines each of its
    servers. It changes no counts. Run it where your application runs, with the same environment. The exit code is 1
    when the store makes limits wrong, now or soon.
    """
    overview, rules = source.overview, list(map(source.overview.as_json, source.rules.rules))
    # The middleware of an application has opened its store, and found all features.
    required = _required_features(source) if overview.is_file else {}
    found = [(PROBLEM, text) for text in _problems(source)]
    found += [(NOTE, text) for text in _notes(source, required)]
    found += examine(source) if connect else ()
    problems, notes, facts = ([text for each, text in found if each == kind] for kind in (PROBLEM, NOTE, FACT))
    report = {
        "store": redacted_url(source.settings.store),
        "rules": rules,
        **({} if overview.is_file else {"exempt": overview.exempt}),
        "required_features": required,
        "problems": problems,
        "notes": notes,
        **({"facts": facts} if connect else {}),
    }
    shown: list[Table | Line | str] = [
        Table(source.title, list(map(row_of, rules))),
        *([] if overview.is_file else overview.notes()),
        *facts,
        *(Line(f"problem: {problem}", "bold red") for problem in problems),
        *(f"note: {note}" for note in notes),
    ]
    return Answer(report, shown, found_wrong=bool(problems or (strict and notes)))


def _required_features(source: Source) -> dict[str, list[str]]:
    """Return the features that neither the request nor the settings provide, each with its rules.

    Raises:
        ConfigError: An application with these settings does not start.
    """
    settings = source.settings
    try:
        with error_path("store"):
            open_store(settings.store, settings.store_timeout).close()
        reader = FeatureReader({}, settings, CheckedFunctions({}), {}, has_routes=True)
    except ConfigError as error:
        raise ConfigError(f"{settings.source}: {error}") from None
    return {name: rules for name, rules in source.rules_by_feature().items() if not reader.knows(name)}


def _problems(source: Source) -> Iterator[str]:
    for rule in source.rules.rules:
        try:
            rule.check_cost()
        except ConfigError as error:
            yield f"{rule.name}: {error}"
    for text in source.settings.trusted_proxies:
        if text != UNIX and not parse_network(text).prefixlen:
            yield f"trusted_proxies has {text}, so each client can choose its own IP address. Name your proxies only"
    yield from source.problems


def _notes(source: Source, required: dict[str, list[str]]) -> Iterator[str]:
    settings, rules = source.settings, source.rules.rules
    if not settings.enabled:
        yield NOT_ENABLED
    if not rules and not settings.amendments:
        yield NO_RULES
    if source.overview.is_file:
        yield from describe_amendments(settings.amendments)
    for name, users in required.items():
        hint = f". {HINTS[name]}pass it in features" if name in HINTS else ""
        yield f"the application must provide the feature {name}, for {', '.join(users)}{hint}"
    counted = {part.feature for rule in rules for parts in rule.source.entries for part in parts}
    for name in sorted(settings.secret.names - {*PERSONAL, *counted}):
        yield f"keyed lists {name}, but no key of these rules uses it"
    if any(rule.name is None for rule in settings.rules):
        yield "a rule without a name is named by its position; its counts start at zero when it moves"
    yield from source.notes
    if not settings.trusted_proxies and any("ip" in rule.source.needs for rule in rules):
        yield "trusted_proxies is empty: behind a proxy, all clients share the count of its IP address, and a ban of it"
    if redacted_url(settings.store).startswith("memory:"):
        yield "memory:// counts in each process separately, so N worker processes allow up to N times the limit"
