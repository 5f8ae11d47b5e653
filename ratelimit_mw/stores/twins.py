"""``TwinStore``: a store that writes each operation once, for threads and for event loops."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..decision import Correction, Decision, Hit
from .base import Store, record_key

Work = Callable[..., Any]
"""One operation. Its first argument is what it works with, such as connections or a transaction."""


class TwinStore(Store):
    """A store whose operations ``_run`` carries out for a thread, and ``_arun`` for an event loop."""

    _apply: Work
    _correct: Work
    _forget: Work
    _read_record: Work
    _write_record: Work
    _ping: Work

    @abstractmethod
    def _run(self, work: Work, *arguments: Any) -> Any:
        """Return the result of an operation with these arguments after the first."""

    @abstractmethod
    async def _arun(self, work: Work, *arguments: Any) -> Any:
        """Async form of ``_run``."""

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return self._run(self._apply, hits, now, consume) if hits else []

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return await self._arun(self._apply, hits, now, consume) if hits else []

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return self._run(self._correct, changes, now) if changes else []

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return await self._arun(self._correct, changes, now) if changes else []

    def forget(self, keys: Iterable[str]) -> None:
        self._run(self._forget, list(keys))

    async def aforget(self, keys: Iterable[str]) -> None:
        await self._arun(self._forget, list(keys))

    def read_record(self, name: str) -> bytes | None:
        return self._run(self._read_record, record_key(name))  # type: ignore[no-any-return]

    async def aread_record(self, name: str) -> bytes | None:
        return await self._arun(self._read_record, record_key(name))  # type: ignore[no-any-return]

    def write_record(self, name: str, data: bytes | None, before: bytes | None) -> bool:
        return self._run(self._write_record, record_key(name, data), data, before)  # type: ignore[no-any-return]

    async def awrite_record(self, name: str, data: bytes | None, before: bytes | None) -> bool:
        return await self._arun(self._write_record, record_key(name, data), data, before)  # type: ignore[no-any-return]

    def ping(self) -> None:
        self._run(self._ping)

    async def aping(self) -> None:
        await self._arun(self._ping)
