"""The Lua that runs in the server: the algorithms, the codecs of their states, and the shell around them.

A call carries the script of the algorithms that it needs, and no others.
"""

from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha1
from importlib.resources import files
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from ...algorithms import Algorithm
from ...algorithms.bucket import Bucket, Gcra, LeakyBucket, LeakyBucketQueue, TokenBucket
from ...algorithms.concurrency import Concurrency
from ...algorithms.fixed_window import CalendarWindow, FixedWindow, IntervalTokenBucket
from ...algorithms.sliding_window_counter import SlidingWindowCounter
from ...algorithms.window_log import RejectionCountingLog, SlidingWindowLog, TieredWindow
from ...decision import Ban, BanLimit, Limit


@dataclass(frozen=True, eq=False)  # there is one object of each, so a set of them hashes as fast as one of numbers
class LuaAlgorithm:
    """An algorithm in Lua: its name and file, the codec of its states, and the fields it needs of a limit."""

    name: str
    file: str
    codec: str
    fields: tuple[str, ...] = ("amount", "period")


_BUCKET: Final = LuaAlgorithm("Bucket", "bucket", "Packed", ("amount", "period", "limit"))
_SERIES: Final = LuaAlgorithm("TieredWindow", "window_log", "Rows", ("amount", "period", "precision", "span"))
_WINDOW: Final = LuaAlgorithm("FixedWindow", "fixed_window", "Packed", ("limit", "period", "alignment"))
_MAX_LIMITS: Final = 10_000

# By exact class: a subclass may decide differently.
_ALGORITHMS: Final[dict[type[Algorithm], LuaAlgorithm]] = {
    FixedWindow: _WINDOW,
    IntervalTokenBucket: _WINDOW,
    CalendarWindow: _WINDOW,
    SlidingWindowCounter: LuaAlgorithm("SlidingWindowCounter", "sliding_window_counter", "Packed"),
    Bucket: _BUCKET,
    TokenBucket: _BUCKET,
    Gcra: _BUCKET,
    LeakyBucket: _BUCKET,
    LeakyBucketQueue: replace(_BUCKET, name="LeakyBucketQueue"),
    TieredWindow: _SERIES,
    SlidingWindowLog: _SERIES,
    RejectionCountingLog: replace(_SERIES, name="RejectionCountingLog"),
    Concurrency: LuaAlgorithm("Concurrency", "concurrency", "Slots", ("amount", "lifetime")),
    Ban: LuaAlgorithm("Ban", "ban", "Packed", ("after", "within", "first", "growth", "longest", "quiet")),
}


class Script(NamedTuple):
    """A Lua text, and the hash by which the server knows it."""

    text: bytes
    sha: bytes


@cache
def build_script(algorithms: frozenset[LuaAlgorithm]) -> Script:
    """Return the script that decides limits of these algorithms."""
    names = sorted({lua.file for lua in algorithms})
    codecs = [f"{codec.lower()}.lua" for codec in sorted({lua.codec for lua in algorithms})]
    kinds = ", ".join(f"{lua.name} = {{{lua.name}, {lua.codec}}}" for lua in sorted(algorithms, key=attrgetter("name")))
    parts = [_read("ratelimit_mw.algorithms", f"{file}.lua") for file in ("muldiv", *names)]
    parts += [_read(__package__, codec) for codec in codecs]
    return _script("\n".join([*parts, f"local KINDS = {{{kinds}}}\n", _read(__package__, "shell.lua")]))


def read_script(name: str) -> Script:
    """Return the script of a file beside this one."""
    return _script(_read(__package__, name))


def _script(text: str) -> Script:
    return Script(text.encode(), sha1(text.encode(), usedforsecurity=False).hexdigest().encode())


class PackedLimits(dict[Limit, Any]):
    """A cache: the fields of a limit that its Lua needs, packed, and the Lua. None for an algorithm without Lua.

    The fields of a calendar are not packed, because each call adds the windows around its time.
    """

    def __missing__(self, limit: Limit) -> Any:
        if len(self) >= _MAX_LIMITS:
            self.clear()
        lua = _ALGORITHMS.get(type(limit.algorithm))
        if lua is None:
            return self.setdefault(limit, None)
        fields: dict[str, Any] = {name: getattr(limit.algorithm, name) for name in lua.fields}
        if limit.shadow:
            fields["shadow"] = True
        if limit.held:
            fields["held"] = limit.held
        if limit.ban is not None or isinstance(limit, BanLimit):
            fields["rule"] = limit.rule
        fields["kind"] = lua.name
        packed = fields if limit.quota.calendar else msgspec.Raw(msgspec.msgpack.encode(fields))
        return self.setdefault(limit, (packed, lua))


PACKED: Final = PackedLimits()


def _read(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text("utf-8")
