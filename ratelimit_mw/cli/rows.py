"""Decisions on the keys of a store as rows of a table and as JSON, each with the command that resets its key."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final

import click

from ..algorithms.limit import prefix_of
from ..decision import Decision
from ..errors import ConfigError
from ..keys.features import Features
from ..keys.parts import part_of
from ..rules.client_key import client_key
from ..rules.compiled import CompiledRule
from ..rules.describe import function_name
from .live import as_counted, command_line, read_features, word_of, words_of
from .output import Cell
from .source import Source

ALL_CLIENTS: Final = "all clients"
_LONGEST: Final = 100 * 365 * 86_400
"""The longest time that is shown, in seconds. The debt of a settled cost may last longer."""


class Rows:
    """Shows decisions of the rules of a source.

    ``features`` are those of the command. A key that they build is reset by them: it may hold digests of them.
    ``lowest`` are the rules with other limits for some clients, of which the lowest one decided.
    """

    def __init__(self, source: Source, features: Features, lowest: Collection[str] = ()) -> None:
        self._source = source
        self._given = features
        self._lowest = lowest

    def row(self, decision: Decision) -> dict[str, Cell]:
        """Return the row of a table, which escapes control characters."""
        is_lowest = decision.rule in self._lowest
        return {
            "rule": decision.rule,
            "client": self.client(decision) or ALL_CLIENTS,
            "limit": self._limit(decision) + " (lowest)" * is_lowest,
            "remaining": f"{decision.remaining:,} of {decision.limit:,}",
            "next request": "perhaps " * (is_lowest and not decision.allowed) + next_request(decision),
            "full again": span_text(decision.reset_after),
        }

    def as_json(self, decision: Decision) -> dict[str, Any]:
        retry = None if decision.allowed else decision.retry_after
        return {
            "rule": decision.rule,
            "client": self.client(decision),
            "limit": self._limit(decision),
            "limit_is_lowest": decision.rule in self._lowest,
            "amount": decision.limit,
            "remaining": decision.remaining,
            "consumed": consumed(decision),
            "allowed": decision.allowed,
            "banned": decision.banned,
            "mode": "shadow" if decision.shadow else "enforce",
            "retry_after": decision.retry_after,
            "retry_at": None if retry is None else _moment(decision, retry).isoformat(),
            "reset_after": decision.reset_after,
            "reset_at": _moment(decision, decision.reset_after).isoformat(),
            "key": decision.key,
            "reset": self.reset_line(decision),
        }

    def _limit(self, decision: Decision) -> str:
        """Return the text of a limit, or the function that the limits of a banned client are from."""
        rule = self._source.rules.by_name[decision.rule]
        return function_name(rule.source.limits) if decision.source in rule.placeholder else decision.source.text

    def client(self, decision: Decision) -> str:
        """Return the values in the key of a decision; "" for the key of all clients."""
        words = words_in(self._source.rules.by_name[decision.rule], decision.key)
        return decision.client if words is None else " ".join(words)

    def reset_lines(self, decisions: Iterable[Decision]) -> list[str]:
        """Return the command that resets each client, once."""
        return list(dict.fromkeys(map(self.reset_line, decisions)))

    def reset_line(self, decision: Decision) -> str:
        """Return the command that resets a key: by its features where they are known, else by the key itself."""
        rule = self._source.rules.by_name[decision.rule]
        client = decision.key[len(prefix_of(decision.key)) :]
        for words in (_used(rule, self._given), words_in(rule, decision.key)):
            if words is not None and self._builds(rule, words, client):
                return command_line(self._source, "reset", rule.name, *words)
        return command_line(self._source, "reset", "--key", decision.key)

    def _builds(self, rule: CompiledRule, words: list[str], client: str) -> bool:
        try:
            return client_key(rule, as_counted(self._source, read_features(words))) == client
        except (click.BadParameter, ConfigError):  # the text of a client that the command would reject
            return False


def _used(rule: CompiledRule, features: Features) -> list[str]:
    """Return the words for those features that the key of a rule uses."""
    chosen = [next((part for part in map(part_of, names) if part.value(features) is not None), None)
              for names in rule.source.entries]  # fmt: skip
    return words_of({word_of(part): part.value(features) for part in chosen if part is not None})


def words_in(rule: CompiledRule, key: str) -> list[str] | None:
    """Return the values in a key of a rule as words. A digest stays a digest. None for a key with other entries."""
    return words_of_client(rule, key[len(prefix_of(key)) :])


def words_of_client(rule: CompiledRule, client: str) -> list[str] | None:
    """Return the values in a key that has no prefix as words, as ``words_in`` does."""
    values = rule.key.values_in(client)
    return None if values is None else [f"{word_of(part_of(name))}={value}" for name, value in values.items()]


def consumed(decision: Decision) -> int:
    """Return what is counted under the key of a decision. A debt may exceed the limit."""
    return decision.limit - decision.remaining


def _moment(decision: Decision, seconds: float) -> datetime:
    """Return a time after a decision, by the clock of the store, in UTC and in whole seconds."""
    return datetime.fromtimestamp(ceil(decision.at + min(seconds, _LONGEST)), UTC)


def span_text(seconds: float) -> str:
    """Return a duration in its two largest units, rounded up to whole seconds.

    >>> span_text(0.2), span_text(61.0), span_text(90_000.0)
    ('1 s', '1 min 1 s', '1 d 1 h')
    """
    left = ceil(min(seconds, _LONGEST))
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}" * bool(count))
    return " ".join(filter(None, parts[:2])) or "0 s"


def next_request(decision: Decision) -> str:
    """Return whether the next request of a key is allowed, in words."""
    if decision.allowed:
        return "allowed"
    verb = "would be rejected" if decision.shadow else "banned" if decision.banned else "rejected"
    if decision.retry_after is None:
        return f"{verb}: its cost never fits"
    until = _moment(decision, decision.retry_after).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{verb} until {until} ({span_text(decision.retry_after)})"
