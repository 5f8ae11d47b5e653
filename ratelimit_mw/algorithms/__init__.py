"""The algorithms by name, and how a rule's ``algorithm`` becomes one.

To add an algorithm, write one class in one file and call ``register``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ..errors import ConfigError, placed, suggestion
from ..quota import Quota, parse_duration
from .base import Algorithm
from .bucket import Gcra, LeakyBucket, LeakyBucketQueue, TokenBucket
from .fixed_window import FixedWindow, IntervalTokenBucket
from .sliding_window_counter import SlidingWindowCounter
from .window_log import RejectionCountingLog, SlidingWindowLog, TieredWindow

__all__ = ["DEFAULT", "Algorithm", "build", "checked_spec", "names", "register"]

DEFAULT: Final = "sliding-window-counter"

Builder = Callable[[Quota], Algorithm]
OptionReader = Callable[[Any], Builder]


def _choice(**builders: Builder) -> OptionReader:
    """An option that is one of these words, each with its builder."""

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
    precision = parse_duration(value)
    if precision == 0:
        raise ConfigError(f"expected a precision above 0; got {value!r}")
    return partial(TieredWindow, precision=precision)


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
    """Return the names of all algorithms, your own included."""
    return list(_BUILDERS)


def register(algorithm: type[Algorithm]) -> type[Algorithm]:
    """Register an algorithm under its ``name``, for use in rules. You can use it as a class decorator.

    Args:
        algorithm: A subclass of ``Algorithm`` with a ``name``.

    Returns:
        The same class.

    Raises:
        ConfigError: The name is taken.
    """
    if algorithm.name in _BUILDERS:
        raise ConfigError(f"the algorithm name {algorithm.name!r} is taken. Choose another name")
    _BUILDERS[algorithm.name] = algorithm
    return algorithm


def build(spec: object, quota: Quota) -> Algorithm:
    """Build the algorithm of a rule for one quota.

    Args:
        spec: A name, a registered class, or a table with ``name`` and at most one option.
        quota: The quota.

    Raises:
        ConfigError: The name or the option is unknown, or the quota does not fit the algorithm.

    Example:
        >>> build("gcra", Quota.parse("5/minute")).name
        'gcra'
        >>> build({"name": "tiered-window", "precision": "250ms"}, Quota.parse("5/s")).variant
        '250ms'
    """
    return _builder(spec)(quota)


def checked_spec(spec: object) -> None:
    """``ConfigError`` unless ``spec`` is an algorithm with one of its options, for any quota."""
    _builder(spec)


def _builder(spec: object) -> Builder:
    name, options = _split(spec)
    if name not in _BUILDERS:
        raise ConfigError(f"unknown algorithm {name!r}{suggestion(name, _BUILDERS)}")
    if len(options) > 1:
        raise ConfigError(f"{name} takes at most one option; got {', '.join(map(repr, options))}")
    for option, value in options.items():
        readers = _OPTIONS.get(name, {})
        if option not in readers:
            raise ConfigError(f"{name} has no option {option!r}{suggestion(option, readers)}")
        with placed(option):
            return readers[option](value)
    return _BUILDERS[name]


def _split(spec: object) -> tuple[str, Mapping[str, object]]:
    if isinstance(spec, type) and issubclass(spec, Algorithm):
        spec = spec.name
    if isinstance(spec, str):
        return spec, {}
    if isinstance(spec, Mapping) and isinstance(spec.get("name"), str):
        return spec["name"], {str(key): value for key, value in spec.items() if key != "name"}
    raise ConfigError(f'expected a name such as "gcra" or a table such as {{name = "token-bucket"}}; got {spec!r}')
