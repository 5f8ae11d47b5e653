"""The Lua that runs in the server: the twins of the algorithms, what keeps their states, and the shell around them.

A call carries the script of just the algorithms it needs. Knows nothing of connections.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final, NamedTuple

import msgspec

from ...algorithms import Algorithm
from ...algorithms.bucket import Bucket, Gcra, LeakyBucket, LeakyBucketQueue, TokenBucket
from ...algorithms.fixed_window import FixedWindow
from ...algorithms.interval_bucket import IntervalTokenBucket
from ...algorithms.sliding_window_counter import SlidingWindowCounter
from ...algorithms.window_log import RefusalCountingLog, SlidingWindowLog, TieredWindow
from ...limit import Limit

__all__ = ["GIVEN", "Script", "packed_limit", "script_of", "twin_of"]


class Twin(NamedTuple):
    """An algorithm in Lua: its name there, the file it is in, and what keeps its states."""

    name: str
    file: str
    keeper: str


_BUCKET: Final = Twin("Bucket", "bucket", "Packed")
_SERIES: Final = Twin("TieredWindow", "window_log", "Rows")
GIVEN: Final = Twin("Given", "", "Given")

# By the very class: a subclass of a user's may decide otherwise.
_TWINS: Final[dict[type[Algorithm], Twin]] = {
    FixedWindow: Twin("FixedWindow", "fixed_window", "Packed"),
    SlidingWindowCounter: Twin("SlidingWindowCounter", "sliding_window_counter", "Packed"),
    IntervalTokenBucket: Twin("IntervalTokenBucket", "interval_bucket", "Packed"),
    Bucket: _BUCKET,
    TokenBucket: _BUCKET,
    Gcra: _BUCKET,
    LeakyBucket: _BUCKET,
    LeakyBucketQueue: Twin("LeakyBucketQueue", "bucket", "Packed"),
    TieredWindow: _SERIES,
    SlidingWindowLog: _SERIES,
    RefusalCountingLog: Twin("RefusalCountingLog", "window_log", "Rows"),
}
_KEEPERS: Final = {"Packed": "packed.lua", "Rows": "rows.lua", "Given": "given.lua"}


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
    keepers = [_KEEPERS[keeper] for keeper in sorted({twin.keeper for twin in twins})]
    kinds = ", ".join(f"{twin.name} = {{{twin.name}, {twin.keeper}}}" for twin in sorted(twins))
    parts = [_lua("ratelimit_mw.algorithms", f"{file}.lua") for file in ("muldiv", *algorithms)]
    parts += [_lua(__package__, keeper) for keeper in keepers]
    return Script("\n".join([*parts, f"local KINDS = {{{kinds}}}\n", _lua(__package__, "shell.lua")]))


def packed_limit(limit: Limit, twin: Twin) -> msgspec.Raw:
    """What the twin needs to know of a limit, ready to be put into a message."""
    algorithm: Any = limit.algorithm
    known = {name: getattr(algorithm, name, None) for name in ("amount", "period", "precision", "span")}
    known |= {"kind": twin.name, "capacity": limit.limit, "shadow": limit.shadow}
    return msgspec.Raw(msgspec.msgpack.encode({name: value for name, value in known.items() if value is not None}))


def _lua(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text("utf-8")
