"""The options of a rule: name, type, default and meaning of each, declared once.

``Rule``, the decorators, the settings file, its JSON schema, the tables in the docs and the type hints use this
declaration.
"""

# Annotations are evaluated here, because msgspec reads them.

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import msgspec

from ..algorithms import DEFAULT
from ..quota import Quota
from .declaration import option

AlgorithmName = Literal[
    "fixed-window",
    "sliding-window-counter",
    "sliding-window-log",
    "tiered-window",
    "token-bucket",
    "leaky-bucket",
    "gcra",
]
OnStoreError = Literal["allow", "deny", "local"]

if TYPE_CHECKING:
    Limits = str | Quota | Iterable[str | Quota] | tuple[int, int]
    Match = Mapping[str, str | int | Iterable[str | int]]
    Algorithm = AlgorithmName | str | Mapping[str, Any]
    Cost = int | Callable[[Any], int]
    LimitsByValue = Mapping[str, Limits]
    LimitsByFeature = Mapping[str, LimitsByValue]
else:  # a file can hold no functions and no objects
    _TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    _TABLE = {"type": "object", "additionalProperties": _TEXTS}
    Limits = str | Sequence[str]
    Match = Annotated[Mapping[str, Any], msgspec.Meta(extra_json_schema=_TABLE)]
    Algorithm = str | Mapping[str, Any]
    Cost = int
    LimitsByValue = Annotated[Mapping[str, Any], msgspec.Meta(extra_json_schema=_TABLE)]
    LimitsByFeature = Annotated[Mapping[str, Any], msgspec.Meta(extra_json_schema={"additionalProperties": _TABLE})]


class CountWhen(TypedDict):
    """Which responses count."""

    status: Annotated[int | Sequence[int], option("Status codes of the responses that count.")]


class RuleOptions(TypedDict, total=False):
    """The options of a rule, except its limits."""

    name: Annotated[
        str | None,
        option(
            "The rule's name in headers, responses and commands: 1 to 200 printable ASCII characters without spaces."
            " Default: `rule-1`, by its position, or `module.view` for a decorator."
        ),
    ]
    key: Annotated[
        str | Sequence[str],
        option(
            'The features to count by, joined. `"user|ip"` is the first of both that is present. `[]` is one count'
            " for all clients.",
            ["ip"],
        ),
    ]
    match: Annotated[Match, option("The requests that the rule applies to. Default: every request.", {})]
    algorithm: Annotated[
        Algorithm,
        option('The algorithm: a name, or a table such as `{name = "token-bucket", refill = "interval"}`.', DEFAULT),
    ]
    cost: Annotated[Cost, option("The cost of one request, a whole number. In Python, also a function of it.", 1)]
    when_missing: Annotated[
        Literal["skip", "reject"],
        option("Whether to skip the rule or to reject the request when all alternatives of a key are missing.", "skip"),
    ]
    mode: Annotated[
        Literal["enforce", "shadow"],
        option('`"shadow"` decides and counts, but never rejects a request and shows nothing in headers.', "enforce"),
    ]
    count_when: Annotated[CountWhen | None, option("Count only requests whose response is one of these.")]
    per_key: Annotated[
        str | LimitsByValue,
        option(
            "Limits for single clients, by the value of a key of one part: a table, or in a settings file the name of"
            " a file with one. They replace `limits` for these clients.",
            {},
        ),
    ]
    per: Annotated[
        LimitsByFeature,
        option("Limits by the value of a feature, such as `plan`. They replace `limits`, and `per_key` them.", {}),
    ]
    on_store_error: Annotated[
        OnStoreError | None, option("What to do when the store is unreachable. Default: the setting of that name.")
    ]
    lease: Annotated[
        str | None,
        option(
            'The share of a busy limit, from `"1%"` to `"50%"`, that a process takes from a shared store in advance and'
            " counts by itself. Without effect on `memory://`."
        ),
    ]


class RuleSettings(RuleOptions, total=False):
    """One rule of the settings."""

    limits: Annotated[Limits, option("The quotas of the rule. All of them hold. Required without `overrides`.")]
    overrides: Annotated[
        str | None,
        option(
            "The name of a decorator's rule to change. The fields given here replace the decorator's, the others stay."
        ),
    ]
