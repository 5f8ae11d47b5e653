"""The worked examples of the docstrings are true, and the public names are all there."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import django_calls  # noqa: F401 - Django's settings have to be there when its modules are looked through
import pytest

import ratelimit_mw

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(ratelimit_mw.__path__, "ratelimit_mw.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    """The examples of docstrings have the output shown."""
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_there_are_examples() -> None:
    """The test above has something to run."""
    finder = doctest.DocTestFinder()
    found = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(found) >= 20


def test_all_names_what_is_public() -> None:
    """Every name of ``__all__`` exists, and every class or function a user may import from the top is in it."""
    assert sorted(set(ratelimit_mw.__all__)) == sorted(ratelimit_mw.__all__)
    assert all(hasattr(ratelimit_mw, name) for name in ratelimit_mw.__all__)
