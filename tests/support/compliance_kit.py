"""Runs one test of a compliance suite with all its parameters."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def calls_of(suite: Any, name: str, **values: Sequence[Any]) -> Iterator[Callable[[], None]]:
    """Yield one test of a suite with each of its parameters."""
    test = getattr(suite, name)
    names = [parameter for parameter in inspect.signature(test).parameters if parameter in values]
    calls: list[dict[str, Any]] = [{}]
    for parameter in names:
        calls = [{**call, parameter: value} for call in calls for value in values[parameter]]
    return (lambda call=call: test(**call) for call in calls)  # type: ignore[misc]


def failures(suite: Any, name: str, **values: Sequence[Any]) -> list[str]:
    messages = []
    for call in calls_of(suite, name, **values):
        try:
            call()
        except AssertionError as error:
            messages.append(str(error))
    return messages
