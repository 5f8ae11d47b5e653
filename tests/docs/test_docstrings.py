"""The worked examples of the docstrings are true, and the public names are all there."""

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


@pytest.mark.slow
def test_examples_in_docstrings() -> None:
    modules = [importlib.import_module(name) for name in MODULES]
    results = {module.__name__: doctest.testmod(module) for module in modules}
    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values()) >= 40


def test_all_names_what_is_public() -> None:
    """Every name of ``__all__`` exists, and every class or function a user may import from the top is in it."""
    assert sorted(set(ratelimit_mw.__all__)) == sorted(ratelimit_mw.__all__)
    assert all(hasattr(ratelimit_mw, name) for name in ratelimit_mw.__all__)
