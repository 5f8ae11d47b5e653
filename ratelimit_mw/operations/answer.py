"""``Answer``: the result of an operation or a command, and the forms of clients, decisions and times in it.

They are the same in commands, the admin API and the dashboard. Times are in UTC, and in whole seconds.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final, NamedTuple

from ..decision import Decision, prefix_of, without_hash_tag
from ..keys.features import INVALID, Features
from ..keys.parts import Part, part_of
from ..rules.compiled import CompiledRule
from ..rules.overrides import ClientOverride
from ..rules.ruleset import RuleSet
from .overview import function_name

Cell = str | Sequence[str] | int | float
"""A text, lines of text, a number, or a share between 0.0 and 1.0."""
_MAX_SHOWN: Final = 100 * 365 * 86_400
"""The longest duration that is shown, in seconds. The debt of a settled cost may last longer."""


class Table(NamedTuple):
    """A table with a column for each key of its rows. Without rows, it is not shown."""

    title: str
    rows: Sequence[Mapping[str, Cell]]


class Line(NamedTuple):
    """A line of text with a style of rich, such as "bold"."""

    text: str
    style: str = ""


class Answer(NamedTuple):
    """The result of an operation or a command, which prints nothing itself.

    Args:
        json: The value for programs: ``--json`` prints it, and the admin API returns it.
        shown: Tables and lines for a person, in this order. An empty text is an empty line.
        notes: Messages beside the result.
        found_wrong: Whether the exit code of the command is 1.
    """

    json: Any
    shown: Sequence[Table | Line | str] = ()
    notes: Sequence[str] = ()
    found_wrong: bool = False


def decision_json(decision: Decision, rules: RuleSet) -> dict[str, Any]:
    """Return a decision with the names of its attributes. ``until`` is the end of a rejection or of a ban.

    The rule of a ban from all rules is None.
    """
    retry = None if decision.allowed else decision.retry_after
    return {
        "rule": decision.rule or None,
        "client": client_text(decision.key[len(prefix_of(decision.key)) :], decision.rule, rules),
        "quota": limits_function_name(decision, rules) or str(decision.quota),
        "unit": decision.unit,
        "mode": "shadow" if decision.shadow else "enforce",
        "allowed": decision.allowed,
        "banned": decision.banned,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "retry_after": decision.retry_after,
        "until": None if retry is None else time_json(decision.at, retry),
        "reset_after": decision.reset_after,
        "reset_at": time_json(decision.at, decision.reset_after),
        "key": decision.key,
        **({"reason": decision.reason} if decision.reason else {}),
    }


def override_json(override: ClientOverride, rules: RuleSet) -> dict[str, Any]:
    """Return an override. Without an end, ``until`` is None."""
    return {
        "rule": override.rule,
        "client": client_text(override.key, override.rule, rules),
        "limits": override.limits,
        "until": None if override.until is None else time_json(override.until),
        "key": override.key,
    }


def limits_function_name(decision: Decision, rules: RuleSet) -> str:
    """Return the name of the function that returns the limits of a banned client; "" for known limits."""
    rule = rules.by_name.get(decision.rule)
    return function_name(rule.source.function) if rule and decision.source in rule.shown_limits else ""


def client_json(rule: str | None, features: Features, **result: object) -> dict[str, Any]:
    """Return the result of a change for one client."""
    return {"rule": rule, "client": " ".join(words_of(features)), **result}


def client_text(client: str, rule: str, rules: RuleSet) -> str:
    """Return the values in a key without its prefix; "" for the key of all clients. The rule may be gone."""
    words = words_of_client(rules.by_name[rule], client) if rule in rules.by_name else []
    return " ".join(words) or without_hash_tag(client)


def words_of_client(rule: CompiledRule, client: str) -> list[str]:
    """Return the values in a key without its prefix as words. A digest stays one. A key of other entries has none."""
    return [f"{word_of(part_of(name))}={value}" for name, value in rule.key.parse(client).items()]


def words_of(features: Features) -> list[str]:
    """Return features as the words of a command."""
    words = []
    for name, value in features.items():
        pairs = {f"{name}.{inner}": text for inner, text in value.items()} if isinstance(value, dict) else {name: value}
        words += [f"{name}={'...' if text is INVALID else text}" for name, text in pairs.items()]
    return words


def word_of(part: Part) -> str:
    """Return the name that a command gives to a part of a key: ``ip`` for ``ip/48``.

    >>> word_of(part_of("user.id")), word_of(part_of("path:id as int")), word_of(part_of("ip/48"))
    ('user.id', 'path:id', 'ip')
    """
    return f"{part.feature}.{part.attribute}" if part.attribute else part.feature


def time_json(at: float, after: float = 0.0) -> str:
    """Return the time ``after`` seconds after ``at``, rounded up, in the form of ISO 8601.

    >>> time_json(1_000_000_000)
    '2001-09-09T01:46:40+00:00'
    """
    return datetime.fromtimestamp(ceil(at + min(after, _MAX_SHOWN)), UTC).isoformat()


def time_text(moment: str | None) -> str:
    """Return a time of JSON for a table.

    >>> time_text("2001-09-09T01:46:40+00:00"), time_text(None)
    ('2001-09-09 01:46:40 UTC', 'no end')
    """
    return f"{moment[:10]} {moment[11:19]} UTC" if moment else "no end"


def minute_text(seconds: float) -> str:
    """Return a time in UTC, to the minute or to the second."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds").removesuffix("+00:00").removesuffix(":00")


def period_text(start: float, end: float) -> str:
    """Return a time range in UTC."""
    return f"{minute_text(start)} to {minute_text(end)} UTC"


def seconds_of(text: str) -> float:
    """Return the seconds since 1970 of a time in ISO 8601, which is in UTC unless it has a zone.

    >>> seconds_of("2001-09-09T01:46:40"), seconds_of("2001-09-09T03:46:40+02:00")
    (1000000000.0, 1000000000.0)
    """
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def span_text(seconds: float) -> str:
    """Return a duration in its two largest units without zeros, rounded up to whole seconds.

    >>> span_text(0.2), span_text(61.0), span_text(90_061.0)
    ('1 s', '1 min 1 s', '1 d 1 h')
    """
    left = ceil(min(seconds, _MAX_SHOWN))
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"
