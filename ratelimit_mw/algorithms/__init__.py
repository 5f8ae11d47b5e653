"""The algorithms by name, and how a rule's ``algorithm`` becomes one.

To add an algorithm, write one class in one file and call ``register``.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from ..decision import Algorithm, Charge, Limit
from ..errors import ConfigError, error_path, suggestion
from ..quota import Quota, parse_duration
from .bucket import Gcra, LeakyBucket, LeakyBucketQueue, TokenBucket
from .concurrency import Concurrency
from .fixed_window import CalendarWindow, FixedWindow, IntervalTokenBucket
from .sliding_window_counter import SlidingWindowCounter
from .window_log import RejectionCountingLog, SlidingWindowLog, TieredWindow

__all__ = ["DEFAULT", "Algorithm", "Charge", "build", "names", "register"]

DEFAULT: Final = "sliding-window"
MAX_EXACT: Final = 32
"""The largest amount that ``sliding-window`` counts with the log."""

Builder = Callable[[Quota], Algorithm]
"""Makes the algorithm of a quota."""
OptionReader = Callable[[Any], Builder]
Registered = TypeVar("Registered", bound=type[Algorithm])


def _choice(builders: Mapping[str | bool, Builder]) -> OptionReader:
    """An option with a builder for each of its values."""

    def read(value: object) -> Builder:
        for choice, builder in builders.items():
            if value == choice:
                return builder
        expected = " or ".join(repr(choice) if isinstance(choice, str) else str(choice).lower() for choice in builders)
        raise ConfigError(f"expected {expected}; got {value!r}")

    return read


def _precision(value: Any) -> Builder:
    precision = parse_duration(value)
    if precision == 0:
        raise ConfigError(f"expected a precision above 0; got {value!r}")
    return partial(TieredWindow, precision=precision)


def _sliding_window(quota: Quota) -> Algorithm:
    """Return the log for a small amount, for which the counter would round down to a fixed window, else the counter."""
    return (SlidingWindowLog if quota.amount <= MAX_EXACT else SlidingWindowCounter)(quota)


_CLASSES = (FixedWindow, SlidingWindowLog, SlidingWindowCounter, TieredWindow, TokenBucket, LeakyBucket, Gcra)
_BUILDERS: dict[str, Builder] = {"sliding-window": _sliding_window, **{cls.name: cls for cls in _CLASSES}}
_OPTIONS: dict[str, dict[str, OptionReader]] = {
    "sliding-window-log": {"count_rejected": _choice({True: RejectionCountingLog, False: SlidingWindowLog})},
    "tiered-window": {"precision": _precision},
    "token-bucket": {"refill": _choice({"continuous": TokenBucket, "interval": IntervalTokenBucket})},
    "leaky-bucket": {"mode": _choice({"meter": LeakyBucket, "queue": LeakyBucketQueue})},
}


def names() -> list[str]:
    """Return the names of all algorithms, your own included."""
    return list(_BUILDERS)


def register(algorithm: Registered) -> Registered:
    """Register an algorithm under its ``name``, for use in rules. You can use it as a class decorator.

    Args:
        algorithm: A subclass of ``Algorithm`` with a ``name``.

    Returns:
        The same class.

    Raises:
        ConfigError: The name is missing or taken.
    """
    if not isinstance(getattr(algorithm, "name", None), str):
        raise ConfigError(f'the algorithm {algorithm.__name__} needs a name. Write name = "..." in its class')
    if algorithm.name in _BUILDERS:
        raise ConfigError(f"the algorithm name {algorithm.name!r} is taken. Choose another name")
    _BUILDERS[algorithm.name] = algorithm
    return algorithm


def build(spec: object, quota: Quota) -> Algorithm:
    """Return the algorithm of a rule for one quota.

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
    return checked_spec(spec)(quota)


def build_limit(rule: str, number: int, quota: Quota, algorithm: object, *options: Any, **named: Any) -> Limit:
    """Return a limit with the algorithm of ``build``; with that of the quota for a calendar and concurrent requests."""
    own = Concurrency if quota.concurrent else CalendarWindow if quota.calendar else None
    build = checked_spec(algorithm) if own is None else own
    if quota.floor is not None and build is _sliding_window:
        build = type(build(quota))  # for each amount the same, so that the count stays
    return Limit(rule, number, quota, build, *options, **named)


def name_of_spec(spec: object) -> Any:
    """Return the name in the spec of an algorithm, None without one."""
    if isinstance(spec, Mapping):
        return spec.get("name")
    return getattr(spec, "name", None) if isinstance(spec, type) and issubclass(spec, Algorithm) else spec


def checked_spec(spec: object) -> Builder:
    """Return the builder of an algorithm for any quota; ``ConfigError`` if its name or its option is unknown."""
    name = name_of_spec(spec)
    options = {option: spec[option] for option in spec if option != "name"} if isinstance(spec, Mapping) else {}
    if not isinstance(name, str):
        raise ConfigError(f'expected a name such as "gcra" or a table such as {{name = "token-bucket"}}; got {spec!r}')
    if name not in _BUILDERS:
        own = ". Import the module of your own algorithm before, and run commands with --app"
        hint = suggestion(name, _BUILDERS)
        raise ConfigError(f"unknown algorithm {name!r}{hint}{'' if hint.endswith('?') else own}")
    if isinstance(spec, type) and _BUILDERS[name] is not spec:
        fix = "Give it a name of its own, and register it"
        raise ConfigError(f"the algorithm {name!r} is another class than {spec.__name__}. {fix}")
    builder = _BUILDERS[name]
    for option, value in options.items():
        readers = _OPTIONS.get(name, {})  # one for each algorithm at most
        if option not in readers:
            raise ConfigError(f"{name} has no option {option!r}{suggestion(option, readers)}")
        with error_path(option):
            builder = readers[option](value)
    return builder
