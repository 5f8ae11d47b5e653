"""``init``: the file that it writes is valid, and so is each of its comments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import run
from tables import each

from ratelimit_mw import Settings, SettingsDict, load_settings
from ratelimit_mw.cli.init import starter
from ratelimit_mw.rules.declaration import defaults_of

TEXT = starter("ratelimit.toml")
SETTINGS = re.findall(r"^# (\w+ .*)  # .*$", TEXT.partition("[[rules]]")[0], re.MULTILINE)
RULES = [block for block in TEXT.split("\n\n") if "# [[rules]]" in block]


@pytest.fixture(autouse=True)
def secret(folder: Path) -> None:
    (folder / "secret.txt").write_text("a secret of 16 characters")


def loaded(text: str) -> Settings:
    Path("changed.toml").write_text(text)
    return load_settings("changed.toml")


def test_the_file_is_valid_and_never_replaced() -> None:
    """The command writes a file that `check` accepts. A second run exits with 2 and changes nothing."""
    first = run("init")
    assert first.stdout == "Wrote ratelimit.toml. Next: ratelimit-mw check ratelimit.toml\n"
    assert run("check", "ratelimit.toml").exit_code == 0
    Path("ratelimit.toml").write_text("changed")
    again = run("init")
    assert (again.exit_code, Path("ratelimit.toml").read_text()) == (2, "changed")
    assert "Error: ratelimit.toml exists. Remove it, or name another file" in again.stderr


@each("line", SETTINGS)
def test_each_setting_may_be_turned_on(line: str) -> None:
    """Each setting in a comment is valid as it is written."""
    if line.startswith("region_database"):  # the test has no such file
        return
    secret = "secret = " if line.startswith("keyed") else ""  # which it needs, as its comment says
    loaded(re.sub(rf"^# (?={re.escape(line)}|{secret or 'none'})", "", TEXT, flags=re.MULTILINE))


def test_each_rule_may_be_turned_on() -> None:
    """Each rule in a comment is valid without the comment signs, alone and with all others."""
    assert len(RULES) == 4
    for block in RULES:
        comment, *lines = block.splitlines()
        text = TEXT.replace(block, "\n".join([comment, *(line.removeprefix("# ") for line in lines)]))
        assert len(loaded(text).rules) == 2, block
    head, mark, rules = TEXT.partition("[[rules]]")
    on = re.sub(r"^# (?=\[\[|\w+ = )", "", rules, flags=re.MULTILINE)
    assert len(loaded(head + mark + on).rules) == 5


def test_the_file_has_every_setting() -> None:
    """A new setting is in the file without a change of the command."""
    names = [line.split(" = ")[0] for line in SETTINGS]
    assert names == [name for name in defaults_of(SettingsDict) if name != "rules"]
    assert max(map(len, TEXT.splitlines())) <= 130


def test_other_names(folder: Path) -> None:
    """The file is TOML, which has comments, and its folder exists. It names itself with its folder."""
    for name, exit_code, message in (
        ("ratelimit.json", 2, "expected a name that ends with .toml; got 'ratelimit.json'"),
        ("pyproject.toml", 2, "has the settings in its table [tool.ratelimit_mw]. Write another name"),
        ("a/b.toml", 1, "No such file"),
    ):
        result = run("init", name)
        assert (result.exit_code, message in " ".join(result.stderr.split())) == (exit_code, True)
    (folder / "sub").mkdir()
    run("init", "sub/limits.toml")
    assert "ratelimit-mw check sub/limits.toml" in Path("sub/limits.toml").read_text()
