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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.txt").write_text("a secret of 16 characters")
    return tmp_path


def loaded(text: str) -> Settings:
    Path("changed.toml").write_text(text)
    return load_settings("changed.toml")


def test_the_file_is_valid_and_never_replaced() -> None:
    """The command writes a file that `check` accepts. A second run exits with 2 and changes nothing."""
    first = run("init")
    assert (first.exit_code, first.stdout) == (
        0,
        "Wrote ratelimit.toml. Next: ratelimit-mw check ratelimit.toml\n",
    )
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


@each("block", RULES)
def test_each_rule_may_be_turned_on(block: str) -> None:
    """Each rule in a comment is valid without the comment signs."""
    comment, *lines = block.splitlines()
    text = TEXT.replace(block, "\n".join([comment, *(line.removeprefix("# ") for line in lines)]))
    assert len(loaded(text).rules) == 2


def test_all_rules_may_be_turned_on_at_once() -> None:
    """The rules in comments do not depend on each other."""
    assert len(RULES) == 4
    head, mark, rules = TEXT.partition("[[rules]]")
    on = re.sub(r"^# (?=\[\[|\w+ = )", "", rules, flags=re.MULTILINE)
    assert len(loaded(head + mark + on).rules) == 5


def test_the_file_has_every_setting() -> None:
    """A new setting is in the file without a change of the command."""
    names = [line.split(" = ")[0] for line in SETTINGS]
    assert names == [name for name in defaults_of(SettingsDict) if name != "rules"]
    assert max(map(len, TEXT.splitlines())) <= 130


@each(
    ("name", "message"),
    [
        ("ratelimit.json", "expected a name that ends with .toml; got 'ratelimit.json'"),
        ("pyproject.toml", "has the settings in its table [tool.ratelimit_mw]. Write another name"),
        ("a/b.toml", "No such file"),
    ],
)
def test_other_names_are_errors(name: str, message: str) -> None:
    """The file is TOML, which has comments, and its folder exists."""
    result = run("init", name)
    assert (result.exit_code, message in " ".join(result.stderr.split())) == (1 if "/" in name else 2, True)


def test_the_file_names_itself_with_its_folder(folder: Path) -> None:
    """So that its commands and examples work from the current folder."""
    (folder / "sub").mkdir()
    run("init", "sub/limits.toml")
    assert "ratelimit-mw check sub/limits.toml" in Path("sub/limits.toml").read_text()
