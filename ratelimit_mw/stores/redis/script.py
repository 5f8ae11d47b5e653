"""The Lua that runs in the server: the twins of the algorithms, what keeps their states, and the shell around them.

A call carries the script of just the algorithms it needs. Knows nothing of connections.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha1
from importlib.resources import files
from operator import attrgetter
from typing import Any, Final

import msgspec

from ...algorithms import Algorithm
from ...algorithms.bucket import Bucket, Gcra, LeakyBucket, LeakyBucketQueue, TokenBucket
from ...algorithms.concurrency import Concurrency
from ...algorithms.fixed_window import FixedWindow
from ...algorithms.interval_bucket import IntervalTokenBucket
from ...algorithms.limit import Limit
from ...algorithms.sliding_window_counter import SlidingWindowCounter
from ...algorithms.window_log import RejectionCountingLog, SlidingWindowLog, TieredWindow

__all__ = ["GIVEN", "Script", "packed_limit", "script_of", "twin_of"]


@dataclass(frozen=True, eq=False)
class Twin:
    """An algorithm in Lua: its name there, its file, what keeps its states, and the numbers it needs of a limit.

    There is one of each, so that sets of them are as cheap as sets of numbers.
    """

    name: str
    file: str
    keeper: str
    numbers: tuple[str, ...] = ("amount", "period")


_BUCKET: Final = Twin("Bucket", "bucket", "Packed", ("amount", "period", "capacity"))
_SERIES: Final = Twin("TieredWindow", "window_log", "Rows", ("amount", "period", "precision", "span"))
GIVEN: Final = Twin("Given", "", "Given")

# By the very class: a subclass of a user's may decide otherwise.
_TWINS: Final[dict[type[Algorithm], Twin]] = {
    FixedWindow: Twin("FixedWindow", "fixed_window", "Packed"),
    SlidingWindowCounter: Twin("SlidingWindowCounter", "sliding_window_counter", "Packed"),
    IntervalTokenBucket: Twin("IntervalTokenBucket", "interval_bucket", "Packed", ("period", "capacity")),
    Bucket: _BUCKET,
    TokenBucket: _BUCKET,
    Gcra: _BUCKET,
    LeakyBucket: _BUCKET,
    LeakyBucketQueue: replace(_BUCKET, name="LeakyBucketQueue"),
    TieredWindow: _SERIES,
    SlidingWindowLog: _SERIES,
    RejectionCountingLog: replace(_SERIES, name="RejectionCountingLog"),
    Concurrency: Twin("Concurrency", "concurrency", "Slots", ("amount", "lifetime")),
}


class Script:
    """A Lua text and the name that the server knows it by."""

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self.sha = sha1(self.text, usedforsecurity=False).hexdigest().encode()


def twin_of(algorithm: Algorithm) -> Twin | None:
    """The Lua of an algorithm, None for one that has none."""
    return _TWINS.get(type(algorithm))


@cache
def script_of(twins: frozenset[Twin]) -> Script:
    """The script that decides what these algorithms decide."""
    algorithms = [file for file in sorted({twin.file for twin in twins}) if file]
    keepers = [f"{keeper.lower()}.lua" for keeper in sorted({twin.keeper for twin in twins})]
    kinds = ", ".join(f"{twin.name} = {{{twin.name}, {twin.keeper}}}" for twin in sorted(twins, key=attrgetter("name")))
    parts = [_lua("ratelimit_mw.algorithms", f"{file}.lua") for file in ("muldiv", *algorithms)]
    parts += [_lua(__package__, keeper) for keeper in keepers]
    return Script("\n".join([*parts, f"local KINDS = {{{kinds}}}\n", _lua(__package__, "shell.lua")]))


def packed_limit(limit: Limit, twin: Twin) -> msgspec.Raw:
    """What the twin needs to know of a limit, ready to be put into a message."""
    known: dict[str, Any] = {name: getattr(limit.algorithm, name) for name in twin.numbers}
    if limit.shadow:
        known["shadow"] = True
    return msgspec.Raw(msgspec.msgpack.encode({"kind": twin.name, **known}))


def _lua(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text("utf-8")
