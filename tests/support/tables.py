"""A table of cases in one test, instead of one test for each case. A failure names the wrong cases."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest

from ratelimit_mw import ConfigError


def each(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call the test with each case of a table: ``@each(("text", "number"), [("1", 1), ("2", 2)])``.

    All cases share the fixtures of the test, so only cases that leave nothing behind belong into a table. Use
    ``pytest.mark.parametrize`` for the others, and for cases that take long.

    Args:
        names: The name of one argument, or the names of several. Another ``each`` may give more.
        cases: The values of the argument, or a sequence for each case.
    """
    table = [{names: case} if isinstance(names, str) else dict(zip(names, case, strict=True)) for case in cases]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def over_the_table(**fixtures: Any) -> None:
            wrong: list[BaseException] = []
            for case in table:
                try:
                    test(**fixtures, **case)
                except (Exception, pytest.fail.Exception, BaseExceptionGroup) as error:
                    error.add_note(f"in the case {case}")
                    wrong.append(error)
            if wrong:
                raise BaseExceptionGroup(f"{len(wrong)} of {len(table)} cases", wrong)

        signature = inspect.signature(test)
        left = [each for each in signature.parameters.values() if each.name not in table[0]]
        over_the_table.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return over_the_table

    return decorate


@contextmanager
def case(*values: object) -> Iterator[None]:
    """Add these values to the report of a failure in the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {', '.join(map(repr, values))}")
        raise


def expect_error(pattern: str, call: Callable[..., object], *arguments: Any, **named: Any) -> str:
    """Return the text of the ``ConfigError`` that a call raises. The pattern has to match it, without its notes."""
    with case(*arguments, named):
        with pytest.raises(ConfigError) as caught:
            call(*arguments, **named)
        assert re.search(pattern, str(caught.value)), f"{pattern!r} is not in {caught.value}"
    return str(caught.value)
