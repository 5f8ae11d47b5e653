"""Decisions on the keys of a store as rows of a table and as JSON, each with the command that resets its key."""

from collections.abc import Collection
from typing import Any, Final

import click

from ..algorithms.limit import prefix_of
from ..decision import Decision
from ..errors import ConfigError
from ..keys.features import Features, words_of
from ..keys.parts import part_of, word_of
from ..limiter.json_forms import client_text, decision_json, function_of, words_in
from ..limiter.times import span_text, time_text
from ..rules.client_key import client_key
from ..rules.compiled import CompiledRule
from .clients import as_counted, command_line, read_features
from .output import Cell
from .source import Source

ALL_CLIENTS: Final = "all clients"


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
            "limit": (function_of(decision, self._source.rules) or decision.source.text) + " (lowest)" * is_lowest,
            "remaining": f"{decision.remaining:,} of {decision.limit:,}",
            "next request": "perhaps " * (is_lowest and not decision.allowed) + next_request(decision),
            "full again": span_text(decision.reset_after),
        }

    def as_json(self, decision: Decision) -> dict[str, Any]:
        return {
            **decision_json(decision, self._source.rules),
            "limit_is_lowest": decision.rule in self._lowest,
            "reset_command": self.reset_line(decision),
        }

    def client(self, decision: Decision) -> str:
        """Return the values in the key of a decision; "" for the key of all clients."""
        client = decision.key[len(prefix_of(decision.key)) :]
        return client_text(client, decision.rule, self._source.rules)

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


def next_request(decision: Decision) -> str:
    """Return whether the next request of a key is allowed, in words."""
    if decision.allowed:
        return "allowed"
    verb = "would be rejected" if decision.shadow else "banned" if decision.banned else "rejected"
    if decision.retry_after is None:
        return f"{verb}: its cost never fits"
    return f"{verb} until {time_text(decision.at, decision.retry_after)} ({span_text(decision.retry_after)})"
