"""The algorithms by name, and how a rule's ``algorithm`` text or table becomes one.

A new algorithm is one class in one file and one call of ``register``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ..errors import ConfigError, placed
from ..quota import Quota, parse_duration
from .base import Algorithm
from .bucket import Gcra, LeakyBucket, LeakyBucketQueue, TokenBucket
from .fixed_window import FixedWindow
from .interval_bucket import IntervalTokenBucket
from .sliding_window_counter import SlidingWindowCounter
from .window_log import RejectionCountingLog, SlidingWindowLog, TieredWindow

__all__ = ["DEFAULT", "Algorithm", "build", "checked_spec", "names", "register"]

DEFAULT: Final = "sliding-window-counter"

Builder = Callable[[Quota], Algorithm]
OptionReader = Callable[[Any], Builder]


def _choice(**builders: Builder) -> OptionReader:
    """An option that is one of a few words, each of them a builder."""

    def read(value: Any) -> Builder:
        if not isinstance(value, str) or value not in builders:
            raise ConfigError(f"expected {' or '.join(map(repr, builders))}; got {value!r}")
        return builders[value]

    return read


def _switch(off: Builder, on: Builder) -> OptionReader:
    def read(value: Any) -> Builder:
        if not isinstance(value, bool):
            raise ConfigError(f"expected true or false; got {value!r}")
        return on if value else off

    return read


def _precision(value: Any) -> Builder:
    us = parse_duration(value)
    if us == 0:
        raise ConfigError("the precision is longer than 0")
    return partial(TieredWindow, precision=us)


_BUILDERS: dict[str, Builder] = {
    cls.name: cls
    for cls in (FixedWindow, SlidingWindowLog, SlidingWindowCounter, TieredWindow, TokenBucket, LeakyBucket, Gcra)
}
_OPTIONS: dict[str, dict[str, OptionReader]] = {
    "sliding-window-log": {"count_rejected": _switch(off=SlidingWindowLog, on=RejectionCountingLog)},
    "tiered-window": {"precision": _precision},
    "token-bucket": {"refill": _choice(continuous=TokenBucket, interval=IntervalTokenBucket)},
    "leaky-bucket": {"mode": _choice(meter=LeakyBucket, queue=LeakyBucketQueue)},
}


def names() -> list[str]:
    """The names that a rule may use, your own included."""
    return list(_BUILDERS)


def register(algorithm: type[Algorithm]) -> type[Algorithm]:
    """Make an algorithm known by its ``name``; usable as a class decorator. ``ConfigError`` for a taken name."""
    if algorithm.name in _BUILDERS:
        raise ConfigError(f"there is an algorithm named {algorithm.name!r} already")
    _BUILDERS[algorithm.name] = algorithm
    return algorithm


def build(spec: object, quota: Quota) -> Algorithm:
    """The algorithm that ``spec`` names, for one quota; ``ConfigError`` says what was expected.

    >>> build("gcra", Quota.parse("5/minute")).name
    'gcra'
    >>> build({"name": "tiered-window", "precision": "250ms"}, Quota.parse("5/s")).variant
    '250ms'
    """
    return _builder(spec)(quota)


def checked_spec(spec: object) -> None:
    """``ConfigError`` unless ``spec`` names an algorithm and options that it has, whatever the quota."""
    _builder(spec)


def _builder(spec: object) -> Builder:
    name, options = _split(spec)
    if name not in _BUILDERS:
        raise ConfigError(f"there is no algorithm {name!r}; expected one of {', '.join(_BUILDERS)}")
    if len(options) > 1:
        raise ConfigError(f"{name} takes one option at most, got {', '.join(map(repr, options))}")
    for option, value in options.items():
        known = _OPTIONS.get(name, {})
        if option not in known:
            raise ConfigError(f"{name} has no option {option!r}; it has {', '.join(known) or 'none'}")
        with placed(option):
            return known[option](value)
    return _BUILDERS[name]


def _split(spec: object) -> tuple[str, Mapping[str, object]]:
    if isinstance(spec, str):
        return spec, {}
    if isinstance(spec, Mapping) and isinstance(spec.get("name"), str):
        return spec["name"], {str(key): value for key, value in spec.items() if key != "name"}
    raise ConfigError(f'expected a name such as "gcra" or a table such as {{name = "token-bucket"}}; got {spec!r}')
