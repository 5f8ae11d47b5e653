"""The files that tests of the commands write."""

import sys
from pathlib import Path

import pytest
from command_line import Files, Write


@pytest.fixture
def rules(tmp_path: Path) -> Write:
    """Writes a settings file with these rules and returns its path."""
    return Files(tmp_path).rules


@pytest.fixture
def settings(tmp_path: Path) -> Write:
    """Writes a settings file with this text and returns its path."""
    return Files(tmp_path).settings


@pytest.fixture
def log(tmp_path: Path) -> Write:
    """Writes a log and returns its path."""
    return Files(tmp_path).log


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path
