"""Missing libraries: a package is loaded again without them, and is as before when the test ends."""

import importlib
import sys

import pytest


def load_without(monkeypatch: pytest.MonkeyPatch, package: str, *libraries: str) -> None:
    """Let the next import load a package again, and fail where it needs a library.

    An import also makes a package an attribute of the one around it, so that is put back, too.
    """
    loaded = importlib.import_module(package)
    parent, _, name = package.rpartition(".")
    monkeypatch.setattr(sys.modules[parent], name, loaded)
    for each in [each for each in sys.modules if f"{each}.".startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, each)
    for library in libraries:
        monkeypatch.setitem(sys.modules, library, None)
