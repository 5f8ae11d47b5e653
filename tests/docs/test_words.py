"""The word check finds what the glossary rules out, with its line."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from folders import DOCS


@pytest.fixture
def check_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, for a project in an empty folder."""
    spec = importlib.util.spec_from_file_location("check_words", DOCS / "check_words.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


LONG = "The " + "very " * 30 + "end."
PROBLEMS = {
    "a banned word": ("a.md", "# Page\n\nIt is fine.\nIt refuses them.\n", [(4, "banned")]),
    "a banned word in a table": ("a.md", "| a | b |\n|---|---|\n| x | is unreadable |\n", [(3, "banned")]),
    "a long sentence": ("a.md", f"Short.\n\nAlso short. {LONG}\n", [(3, "long")]),
    "a long item of a list": ("a.md", f"- one\n- {LONG}\n", [(2, "long")]),
    "a pattern of another language": (
        "a.md",
        "It works in place\nof X, also when Y.\n",
        [(1, "banned"), (2, "banned")],
    ),
    "a word that is too frequent": ("a.md", "Nobody waits.\n", [(1, "nobody")]),
    "a clause as subject": ("a.md", "It is so.\nWhat waits is served.\n", [(2, "what")]),
    "a page without a reader": ("a.md", "It is fine. " * 110, [(1, "you")]),
    "a page that addresses the reader too often": ("a.md", "You wait for your turn. " * 70, [(1, "you")]),
    "a docstring": ("a.py", 'def f():\n    """First.\n\n    It refuses them.\n    """\n', [(4, "banned")]),
    "a comment": ("a.py", "x = 1  # it is told to wait\n", [(1, "say")]),
    "a message": ("a.py", 'raise OSError(f"the {x} is unreadable for us")\n', [(1, "banned")]),
    "a comment of a Makefile": ("Makefile", "all: # fine\n# whoever waits\n", [(2, "nobody")]),
    "a comment beside a setting": ("a.toml", 'a = "refuse" # fine\nb = 1 # it refuses\n', [(2, "banned")]),
    "a comment of a script": ("a.lua", "local x = 1\n-- whoever waits\n", [(2, "nobody")]),
}
FINE = {
    "code": ("a.md", "Call `refuse()`.\n\n```python\nrefuse()\n```\n"),
    "a link": ("a.md", "[this](refuse.md) and https://refuse.example\n"),
    "a question": ("a.md", "## What does it cost?\n"),
    "the standard term": ("a.md", "connection refused\n"),
    "a list": ("a.md", "It has also if and else. See also where it is. In the place of one.\n"),
    "names": ("a.py", 'def refuse(told: str = "spend") -> None:\n    nobody = {"refuse": "told"}\n'),
    "an example": ("a.py", 'def f():\n    """Do it.\n\n    Example:\n        nobody refuses it\n    """\n'),
    "several sentences": ("a.md", ("You wait. " + "It ends. " * 15) * 12),
}


def test_problems_are_found_with_their_lines(check_words: ModuleType, tmp_path: Path) -> None:
    """Prose in pages, docstrings, comments and messages is checked, and no code, name or question."""
    cases = {**PROBLEMS, **{name: (*case, []) for name, case in FINE.items()}}
    found = {case: check_words.check(write(tmp_path, name, text)) for case, (name, text, _) in cases.items()}
    shown = {case: [(line, kind) for line, kind, _ in problems] for case, problems in found.items()}
    assert shown == {case: expected for case, (*_, expected) in cases.items()}


def test_a_message_has_the_place_and_the_word_to_write(
    check_words: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A problem fails the check with file, line, the word found and its replacement."""
    write(tmp_path, "docs/page.md", "One.\n\nIt refuses.\n")
    assert check_words.main([]) == 1
    assert capsys.readouterr().out == 'docs/page.md:3: "refuses": write "reject"\n'


def test_only_the_words_of_a_test_are_checked(check_words: ModuleType, tmp_path: Path) -> None:
    """Its strings are code, data and messages."""
    write(tmp_path, "tests/test_a.py", f'x = "{LONG} Nobody waits"  # what waits\n')
    assert check_words.main([]) == 0
    write(tmp_path, "tests/test_a.py", "x = 1  # it refuses\n")
    assert check_words.main([]) == 1
