"""``ratelimit-mw doctor``: examine the store and the settings of an application, and show how to repair them."""

from collections import Counter
from collections.abc import Iterator

import click

from ...errors import RateLimitError
from ...stores import redacted_url
from ..live import open_limiter
from ..output import Failure, command, count_text, json_option, note, print_json, print_text
from ..source import Source
from ..source_command import SourceCommand
from .finding import NOTE, OK, PROBLEM, WARNING, Finding
from .settings import examine_headers, examine_proxies, examine_settings, examine_versions
from .store import examine_store

_STYLES = {OK: "green", NOTE: "", WARNING: "yellow", PROBLEM: "bold red"}


@command(
    "ratelimit-mw doctor ratelimit.toml",
    "ratelimit-mw doctor ratelimit.toml --json",
    "ratelimit-mw doctor --app shop:app",
    cls=SourceCommand,
)
@json_option
def doctor(source: Source, as_json: bool) -> None:
    """Examine the store, the settings and the proxies of your application, and show how to repair a problem.

    The command opens the store, measures its round trip and its clock, and examines each of its servers. It changes
    no counts. Run it where your application runs, with the same environment. The exit code is 1 for a problem.
    """
    findings = list(_examine(source))
    levels = Counter(finding.level for finding in findings)
    if as_json:
        print_json({"problems": levels[PROBLEM], "findings": [finding._asdict() for finding in findings]})
    else:
        for finding in findings:
            print_text(f"{finding.level:8} {finding.subject}: {finding.text}", _STYLES[finding.level])
            if finding.fix:
                print_text(f"{'':8} fix: {finding.fix}")
    note(f"{count_text(levels[PROBLEM], 'problem')}, {count_text(levels[WARNING], 'warning')}")
    if levels[PROBLEM]:
        raise click.exceptions.Exit(1)


def _examine(source: Source) -> Iterator[Finding]:
    settings = source.running_settings
    store = source.limits.limiter.store if source.limits else settings.store
    yield examine_versions(redacted_url(store))
    yield from examine_settings(source)
    yield from examine_proxies(source.settings)
    yield examine_headers(source.settings)
    try:
        with open_limiter(source, may_be_memory=True) as limiter:
            yield from examine_store(limiter, settings)
    except (RateLimitError, Failure) as error:
        text = error.message if isinstance(error, Failure) else str(error)
        yield Finding("store", text, PROBLEM, "correct the store in the settings, or start the application first")
