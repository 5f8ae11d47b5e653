"""The options of a rule: name, type, default and meaning of each. See ``declaration.py``."""

# Annotations are evaluated here, because msgspec reads them.

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Required, TypedDict

from .. import algorithms
from ..keys.key import parse_key
from ..quota import Quota, parse_duration
from .declaration import OFF, option
from .match import Match as ParsedMatch
from .match import MatchOptions
from .names import checked_rule_name
from .priorities import parse_reserve
from .schedule import parse_timezone
from .values import (
    BanOptions,
    CountUnless,
    CountWhen,
    Duration,
    checked_algorithm,
    checked_table,
    checked_word,
    parse_ban,
    parse_cost,
    parse_count_unless,
    parse_count_when,
    parse_hold,
    parse_percent,
    parse_positive_duration,
)

AlgorithmName = Literal[
    "sliding-window",
    "fixed-window",
    "sliding-window-counter",
    "sliding-window-log",
    "tiered-window",
    "token-bucket",
    "leaky-bucket",
    "gcra",
]
OnStoreError = Literal["allow", "deny", "local"]
Consistency = Literal["exact", "leased"]


class AlgorithmTable(TypedDict, total=False):
    """An algorithm with one of its options."""

    name: Required[Annotated[AlgorithmName, option("The name.")]]
    count_rejected: Annotated[bool, option("Whether rejected requests count, too, in `sliding-window-log`.", False)]
    precision: Annotated[str | float, option("The length of a part of the window of `tiered-window`.")]
    refill: Annotated[
        Literal["continuous", "interval"],
        option("Whether `token-bucket` fills all the time, or at once.", "continuous"),
    ]
    mode: Annotated[Literal["meter", "queue"], option("Whether `leaky-bucket` rejects or delays requests.", "meter")]


if TYPE_CHECKING:
    FixedLimits = str | Quota | Iterable[str | Quota] | tuple[int, int]
    LimitsFunction = Callable[..., FixedLimits | Awaitable[FixedLimits]]
    Limits = FixedLimits | LimitsFunction | Mapping[str, LimitsFunction]
    LimitsOfKey = str | Mapping[str, FixedLimits]
    Match = Mapping[str, str | int | Iterable[str | int]]
    Algorithm = AlgorithmName | AlgorithmTable | type[algorithms.Algorithm]
    Cost = int | str | Callable[[Any], int]
    Off = Literal[False]
else:  # a file can hold no functions and no objects
    FixedLimits = Limits = str | Sequence[str]
    LimitsOfKey = str | Mapping[str, Limits]
    Match = MatchOptions
    Algorithm = AlgorithmName | AlgorithmTable
    Cost = int | str
    Off = Annotated[bool, OFF]
LimitsByText = Mapping[str, FixedLimits]
LimitsByFeature = Mapping[str, LimitsByText]


class RuleDefaults(TypedDict, total=False):
    """The options of a rule that `[defaults]` may have, too."""

    key: Annotated[
        str | Sequence[str], parse_key, option('Features to count by. `"user|ip"`: the user, else the IP.', ["ip"])
    ]
    algorithm: Annotated[
        Algorithm, checked_algorithm, option('A name, or a table such as `{name = "gcra"}`.', algorithms.DEFAULT)
    ]
    mode: Annotated[Literal["enforce", "shadow"], option('`"shadow"` decides, but never rejects.', "enforce")]
    count_when: Annotated[
        CountWhen | None, parse_count_when, option("Count only the requests with one of these outcomes.")
    ]
    on_store_error: Annotated[OnStoreError | None, option("The action without the store. Default: as in the settings.")]
    consistency: Annotated[
        Consistency, option('How a process counts a busy key: `"leased"` takes shares in advance.', "exact")
    ]
    ban: Annotated[
        BanOptions | Off | None, parse_ban, option("Ban a client that was rejected often. `false` for no ban.")
    ]
    timezone: Annotated[
        str,
        parse_timezone,
        option('The time zone of `schedule` and of calendar quotas, such as `"Europe/Berlin"`.', "UTC"),
    ]


class RuleOptions(RuleDefaults, total=False):
    """The options of a rule, except its limits."""

    name: Annotated[
        str | None, checked_rule_name, option("The name in headers and commands. Default: `rule-1`, or `module.view`.")
    ]
    match: Annotated[
        Match, ParsedMatch.parse, option("The requests that the rule applies to. Default: every request.", {})
    ]
    cost: Annotated[
        Cost,
        parse_cost,
        option('The cost of one request, or the feature with it: `"json:max_tokens"`. A function in Python.', 1),
    ]
    unit: Annotated[
        str, checked_word, option('The unit of the limits, such as `"tokens"`, in headers and messages.', "requests")
    ]
    when_missing: Annotated[Literal["skip", "reject"], option("The action for a request without the key.", "skip")]
    count_unless: Annotated[
        CountUnless | None, parse_count_unless, option("Count all requests but those with one of these outcomes.")
    ]
    per_key: Annotated[
        LimitsOfKey,
        checked_table,
        option("Limits by the value of the key, as a table or a file. The key has one part.", {}),
    ]
    per: Annotated[LimitsByFeature, checked_table, option("Limits by feature and value. They replace `limits`.", {})]
    schedule: Annotated[
        LimitsByText,
        checked_table,
        option('Limits at certain times, such as `"mon-fri 08:00-18:00"`. They replace `limits`.', {}),
    ]
    limits_ttl: Annotated[Duration, option("How long limits from a function are kept, in Python.", "1m")]
    hold_at_most: Annotated[str | float, parse_hold, option("The longest time that a request holds a slot.", "1h")]
    wait: Annotated[
        str | float | None, parse_duration, option('The longest wait for a slot of a limit such as `"2 concurrent"`.')
    ]
    max_waiting: Annotated[int, option("Maximum number of waiting requests of one key in one process.", 100, ge=1)]
    reserve: Annotated[
        Mapping[str, str],
        parse_reserve,
        option('The share that is kept for a class and those above it: `{critical = "20%"}`.', {}),
    ]
    target: Annotated[
        str | float | None,
        parse_positive_duration,
        option("The time in which 90% of the requests at an adaptive limit should end."),
    ]
    tune: Annotated[
        Literal["demand", "health"] | None,
        option("The cause of a change of an adaptive rate: its demand, or the health of the service."),
    ]
    unrouted: Annotated[
        bool, option("Whether the rule may name a path, view, method or scope that no route has.", False)
    ]
    lease: Annotated[
        str | None,
        partial(parse_percent, most=50),
        option(
            'The share that `"leased"` takes, `"1%"` to `"50%"`. Alone, it means `"leased"`. Default: 2%.'
            ' Beside `consistency = "exact"`, the rule ignores it.'
        ),
    ]


LIMITS_MEANING = "The quotas of the rule. All of them hold."


class RuleSettings(RuleOptions, total=False):
    """One rule of the settings."""

    limits: Annotated[Limits, option(f"{LIMITS_MEANING} Required without `overrides`.")]
    overrides: Annotated[str | None, option("The name of a decorator's rule to change. Its other options stay.")]
