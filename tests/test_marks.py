"""The decorators by themselves: what they may stand on, and that nothing marked runs undecided."""

from __future__ import annotations

from typing import Any

import pytest

from ratelimit_mw import ConfigError, Limiter
from ratelimit_mw.errors import MissingMiddlewareError
from ratelimit_mw.marks import exempt, limit, make_mark


@pytest.mark.parametrize("names", [(5,), ("api", None), (["api"],)])
def test_an_exemption_names_rules(names: tuple[Any, ...]) -> None:
    """Anything else is a mistake at the start."""
    with pytest.raises(ConfigError, match="@exempt: expected names of rules; got "):
        exempt(*names)


@pytest.mark.parametrize("view", [len, [].append, {"a": 1}.get])
def test_a_view_that_is_no_function_of_python_is_guarded_too(view: Any) -> None:
    """A built-in or a method of one keeps its name and refuses to run undecided."""
    marked = limit("5/minute")(view)
    assert marked.__name__ == view.__name__
    with pytest.raises(MissingMiddlewareError):
        marked("a")


def test_a_replacement_gives_no_path() -> None:
    """A view has its path from its route, also where a settings file retunes its rule."""
    limiter = Limiter.from_settings({"rules": [{"replaces": "login", "match": {"path": "/login"}}]})
    with pytest.raises(ConfigError, match=r"match\.path: the view of 'login' has its path from its route"):
        limiter.adopt([make_mark("5/minute", {"name": "login"}, "views.login")])
