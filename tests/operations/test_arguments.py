"""The arguments of operations: features as words, and the types that are declared."""

from __future__ import annotations

import pytest
from tables import each

from ratelimit_mw import ConfigError
from ratelimit_mw.keys.features import INVALID
from ratelimit_mw.operations import read_features
from ratelimit_mw.operations.arguments import words_of


def test_words_are_features() -> None:
    """Names have their canonical form. A name with two values is invalid, as in a request."""
    words = ["ip=192.0.2.7", "header:X-API-Key=a=b", "user.id=7", "user.name=ann", "query:a=1", "query:a=2"]
    features = read_features(words)
    assert features == {
        "ip": "192.0.2.7",
        "header:x-api-key": "a=b",
        "user": {"id": "7", "name": "ann"},
        "query:a": INVALID,
    }
    assert read_features(words_of({**features, "query:a": "1"})) == {**features, "query:a": "1"}


@each(
    ("words", "problem"),
    [
        (["alice"], "expected NAME=VALUE; got 'alice'"),
        (["IP=192.0.2.7"], "expected a feature"),
        (["ip/48=2001:db8::"], 'expected "ip"'),
        (["user=7", "user.id=7"], "set either user or user.id"),
        (["email=" + "a" * 330], "more than 320"),
    ],
)
def test_other_words_are_misused(words: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_features(words)
