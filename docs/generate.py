"""Writes the generated parts of docs/ again: `python docs/generate.py`; with --check it only says what is out of date.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`. Fields, types and defaults come from
the package, so they cannot drift; what a field means is said here, and a field without a word on it is an error.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from click.testing import CliRunner
from msgspec import inspect

from ratelimit_mw import algorithms, settings
from ratelimit_mw.cli import commands

DOCS: Final = Path(__file__).parent
_PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

MEANINGS: Final[dict[str, dict[str, str]]] = {
    "SettingsTable": {
        "rules": "The rules, each a `[[rules]]` table; see below.",
        "store": "Where counts are kept; see [stores](stores.md).",
        "trusted_proxies": 'Proxies whose word on the client\'s address is taken: addresses, networks, `"unix"`;'
        " see [features](features.md#the-clients-address).",
        "forwarded_header": "The header that those proxies write.",
        "ipv6_prefix": "How many bits of an IPv6 address make one client; 128 tells every address apart.",
        "headers": "The families of headers on answers; see [headers](headers.md). An empty list sends none"
        " but `Retry-After`.",
        "reset": "`X-RateLimit-Reset` in seconds from now, or in seconds since 1970.",
        "retry_jitter": "Adds a random whole number of seconds, up to this, to `Retry-After` and `RateLimit`,"
        " so that clients do not come back all at once.",
        "on_store_error": "When a store does not answer: let requests pass, reject them with 503, or count in this"
        " process. `memory://` always answers, so it changes nothing there.",
        "store_timeout": "How long a call on a store may take. It changes nothing for `memory://`.",
        "fleet_size": "How many processes share a store. When it does not answer and a rule goes on by"
        ' `on_store_error = "local"`, each counts to that share of the limit.',
        "rejection_cache": "How long, at most, a process rejects by itself what a shared store has just rejected;"
        " 0 asks every time. It changes nothing for `memory://`.",
        "lists": "Who is never limited and who is never served, before all rules; see [lists](#lists).",
        "email_field": "The field of a form or of JSON that `email` is; `a.b` in JSON is `b` within `a`;"
        " see [features](features.md#bodies).",
        "body_limit": "How much of a body is read for rules that need a field of it.",
        "body_timeout": "How long a body may take to arrive for such rules. ASGI only; under WSGI the server decides.",
        "region_database": "A MaxMind database of countries, for `region`; see [features](features.md#region).",
        "region_header": "A header with the country, for `region`. Only taken from `trusted_proxies`.",
        "secret": "Keeps personal features out of the store, by digests that it keys. At least 16 characters;"
        " see [features](features.md#keeping-people-out-of-the-store).",
        "secret_file": "A file that holds the secret and nothing else.",
        "keyed": "The features that a secret keeps out of the store; `email`, `user` and `ip` when there is one.",
        "$schema": "For editors: the address of the schema. Not read.",
    },
    "RuleTable": {
        "limits": "Quotas; all of them hold. See [quotas](#quotas).",
        "overrides": "For decorators: changes the rule of this name that a decorator gives, by the fields given here."
        " `limits` may be left out then.",
        "name": "Stands in headers, in answers and in commands. Without one: `rule-1`, by its place.",
        "match": "Which requests; see [match](#match). Omitted: every request.",
        "key": 'What is counted apart; see [features](features.md). `"user\\|ip"` is the first that is known;'
        " `[]` is one count for everybody.",
        "algorithm": "See [algorithms](algorithms.md). A table when it has an option.",
        "cost": "What one request consumes.",
        "when_missing": "A request whose key is unknown: the rule does not apply to it, or rejects it.",
        "mode": '`"shadow"` decides and counts, and never rejects nor shows in headers.',
        "count_when": "Only requests with these outcomes count; see [outcomes](#outcomes).",
        "per_key": "Limits of single clients, by the value of a one-part key: a table, or the name of a file with"
        " one. They replace `limits` for these clients.",
        "per": "Limits by the value of any feature, such as `plan`. They replace `limits`; `per_key` goes first.",
        "on_store_error": "For this rule, in place of the file's.",
        "lease": 'For shared stores: the share of a busy limit, such as `"2%"`, that a process takes at once and counts'
        " by itself. It changes nothing for `memory://`.",
        "priority": "There is one.",
    },
    "Outcome": {"status": "Status codes of responses."},
}


def fields(table: type[msgspec.Struct]) -> str:
    """A table of the fields of a struct: name, type, default, meaning."""
    meanings = MEANINGS[table.__name__]
    lines = ["| field | is | default | |", "|---|---|---|---|"]
    for field in inspect.type_info(table).fields:  # type: ignore[attr-defined]
        meaning = meanings.get(field.encode_name)
        if meaning is None:
            raise LookupError(f"say in MEANINGS what {table.__name__}.{field.encode_name} means")
        lines.append(f"| `{field.encode_name}` | {type_text(field.type)} | {_default(field)} | {meaning} |")
    return "\n".join(lines)


def _default(field: inspect.Field) -> str:
    if field.required or field.default is field.default_factory is msgspec.NODEFAULT:
        return "required"  # the second: what is UNSET is asked for later
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    return "none" if value in (None, "") else f"`{json.dumps(value)}`"


def type_text(kind: inspect.Type) -> str:
    """A type in words."""
    if isinstance(kind, inspect.Metadata):
        return type_text(kind.type)
    if isinstance(kind, inspect.UnionType):
        return _union_text(kind)
    if isinstance(kind, inspect.LiteralType):
        return " or ".join(f'`"{value}"`' for value in kind.values)
    if isinstance(kind, inspect.ListType):
        inner = type_text(kind.item_type)
        return f"list of {inner if inner.startswith('`') else inner + 's'}"
    words: dict[type, str] = {
        inspect.StrType: "text",
        inspect.IntType: "whole number",
        inspect.DictType: "table",
        inspect.StructType: "table",
    }
    return words[type(kind)]


def _union_text(union: inspect.UnionType) -> str:
    kinds = [kind for kind in union.types if not isinstance(kind, inspect.NoneType)]
    if any(isinstance(kind, inspect.FloatType) for kind in kinds):
        return "[duration](#durations)"
    return " or ".join(map(type_text, kinds))


def algorithm_options() -> str:
    """A table of the algorithms and the one option that each may have."""
    lines = ["| algorithm | option |", "|---|---|"]
    for name in algorithms.names():
        options = ", ".join(f"`{option}`" for option in algorithms._OPTIONS.get(name, {}))
        lines.append(f"| `{name}`{' (the default)' if name == algorithms.DEFAULT else ''} | {options or 'none'} |")
    return "\n".join(lines)


def command_help() -> str:
    """What each command says of itself, as a command and its output."""
    group = commands()
    parts = []
    for name in sorted(group.commands):
        result = CliRunner().invoke(group, [name, "--help"], prog_name="ratelimit-mw", terminal_width=80)
        parts.append(
            f"### {name}\n\n```sh\nratelimit-mw {name} --help\n```\n\n```text\n{result.output.rstrip()}\n```\n"
        )
    return "\n".join(parts).rstrip()


PARTS: Final[dict[str, Callable[[], str]]] = {
    "settings-fields": lambda: fields(settings.SettingsTable),
    "rule-fields": lambda: fields(settings.RuleTable),
    "outcome-fields": lambda: fields(settings.Outcome),
    "algorithm-options": algorithm_options,
    "command-help": command_help,
}


def regenerated(text: str) -> str:
    """A page with its generated parts made anew."""

    def made(found: re.Match[str]) -> Any:
        return f"{found[1]}{PARTS[found[2]]()}\n{found[3]}"

    return _PART.sub(made, text)


def stale_pages(pages: list[Path]) -> list[Path]:
    """The pages that `make docs` would change."""
    return [page for page in pages if regenerated(page.read_text()) != page.read_text()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when something is out of date")
    check = parser.parse_args().check
    stale = stale_pages(sorted(DOCS.glob("*.md")))
    for page in stale:
        print(f"{page.name}: {'out of date; run `make docs`' if check else 'written'}")
        if not check:
            page.write_text(regenerated(page.read_text()))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
