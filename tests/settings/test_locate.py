"""The line of a mistake in a settings file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tables import expect_error

from ratelimit_mw import Limiter, load_settings
from ratelimit_mw.rules.places import places_in

TOML = '''# [lists] in a comment
store = """
headers = 5
"""
[[rules]]
name = "a"  # [[rules]]
limits = [
  "5/minute",
]
match.path = "/a"

[[rules]]
[rules.per_key]
"client.42" = "5/minute"

[lists.deny]
ip = ["192.0.2.7"]
'''
YAML = """rules:
  - name: a
    limits:
      - 5/minute
      - x
"""


def line_of(file: Path, text: str, path: str) -> int | None:
    """Return the line of a setting in a file with this text."""
    file.write_text(text)
    line = places_in(str(file))(path).removeprefix(str(file)).removeprefix(":")
    return int(line) if line else None


def test_the_line_is_that_of_the_nearest_key(tmp_path: Path) -> None:
    """In TOML, strings, comments and lines inside brackets are no keys. JSON is YAML. Broken text has no lines."""
    for name, text, path, line in (
        ("r.toml", TOML, "store", 2),
        ("r.toml", TOML, "headers", None),
        ("r.toml", TOML, "rules[0]", 5),
        ("r.toml", TOML, "rules[0].limits[0]", 7),
        ("r.toml", TOML, "rules[0].match.path", 10),
        ("r.toml", TOML, "rules[1].cost", 12),
        ("r.toml", TOML, "rules[1].per_key['client.42']", 13),
        ("r.toml", TOML, "lists.deny.ip[0]", 17),
        ("r.toml", TOML, "rules", 5),
        ("r.yaml", YAML, "rules[0].limits[1]", 5),
        ("r.yaml", YAML, "rules[0].cost", 2),
        ("r.yaml", '{\n"store":\n5}', "store", 2),
        ("r.yaml", "", "store", None),
        ("r.yaml", "a: [", "a", None),
    ):
        assert line_of(tmp_path / name, text, path) == line, path


def test_a_line_that_cannot_be_found_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of JSON need the YAML library; the message has the file and the path without it."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "r.json"
    path.write_text('{"rules": [{"limits": "1/s", "overrides": 5}]}')
    error = expect_error("", load_settings, path)
    assert error == f"{path}: rules[0]: overrides: expected the name of a rule; got 5"


def test_the_message_has_file_line_rule_and_path(tmp_path: Path) -> None:
    """As an editor's link, and with a suggestion."""
    path = tmp_path / "ratelimit.toml"
    path.write_text('\n[[rules]]\nname = "login"\n\nlimits = ["5/minut"]\n')
    error = expect_error("", load_settings, path)
    assert error == (
        f"{path}:5: rules[0] \"login\": limits[0]: cannot parse quota '5/minut'."
        " Expected AMOUNT/PERIOD, for example \"5/minute\". Did you mean '5/minute'?"
    )


def test_an_unknown_name_has_its_own_line(tmp_path: Path) -> None:
    """Not the line of the table around it."""
    for name, text, line in (
        ("r.toml", '[lists]\nalow = {}\n[[rules]]\nlimits = "1/s"', 2),
        ("r.toml", 'headers = []\n[[rule]]\nlimits = "1/s"', 2),
        ("r.yaml", "rules:\n  - limits: 1/s\n    match:\n      path: /a\n      user-agent: x", 5),
    ):
        path = tmp_path / name
        path.write_text(text)
        expect_error(f"^{path}:{line}: ", load_settings, path)


def test_each_rule_has_its_place(tmp_path: Path) -> None:
    for head in ("", 'limits = "9/day"\n'):
        file = tmp_path / "ratelimit.toml"
        file.write_text(f'{head}[[rules]]\nname = "api"\nlimits = "5/minute"\n', encoding="utf-8")
        limiter = Limiter.from_settings(file)
        lines = {rule.name: rule.lines for rule in limiter.rules.rules}
        line = 2 if head else 1
        assert lines["api"] == [f"{file}:{line}"], head
        assert len(lines) == line, head
