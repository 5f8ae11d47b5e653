"""Parse the simple values of a rule's options: counts, durations, tables, and its cost. Pure."""

import inspect
from collections.abc import Mapping
from typing import Any

from ..clock import SECOND
from ..errors import ConfigError
from ..quota import checked_cost, parse_duration
from .costs import FeatureCost
from .declaration import checked_call


def parse_cost(cost: object) -> object:
    """Return the cost of a rule: a number, a feature or a function."""
    if isinstance(cost, str):
        return FeatureCost(cost)
    if not callable(cost):
        return checked_cost(cost)
    if inspect.iscoroutinefunction(cost):
        raise ConfigError(f"expected a function that is not async; got {cost!r}")
    return checked_call(cost, "the request or message")


def parse_count(value: object, most: int | None = None) -> int:
    """Return a whole number from 1, up to ``most``."""
    if type(value) is not int or value < 1 or (most is not None and value > most):
        raise ConfigError(f"expected a whole number from 1{f' to {most}' if most else ''}; got {value!r}")
    return value


def parse_positive_duration(duration: object) -> int:
    if not (us := parse_duration(duration)):
        raise ConfigError(f"expected a duration above 0; got {duration!r}")
    return us


def parse_whole_seconds(duration: object) -> int:
    if (us := parse_duration(duration)) % SECOND:
        raise ConfigError(f'expected whole seconds such as "2s"; got {duration!r}')
    return us


def parse_hold(duration: object) -> int:
    if (hold := parse_duration(duration)) < SECOND:
        raise ConfigError(f'expected a duration from "1s"; got {duration!r}')
    return hold


def checked_table(path: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"expected a table; got {value!r}", path)
    return value
