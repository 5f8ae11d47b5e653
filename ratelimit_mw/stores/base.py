"""The interface of a store. A store keeps states and changes them atomically; it knows nothing of HTTP or rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..decision import Correction, Decision, Hit, Limit
from ..errors import ConfigError
from ..runtime.blocking import async_form

MAX_LISTED: Final = 1_000
"""The maximum number of keys that one call of ``list_keys`` looks at."""
_DIGITS: Final = 20
RECORD_PREFIX: Final = "record|"
"""The prefix of the keys of records. No key of a rule begins with it."""
MAX_RECORD: Final = 1_000_000
"""The maximum size of a record in bytes. Memcached keeps a little more in one item."""


class KeyPage(NamedTuple):
    """Some keys of a store.

    Args:
        keys: The keys.
        next: The cursor of the next page; None after the last one.
    """

    keys: list[str]
    next: str | None


class Facts(NamedTuple):
    """The values of one part of a store.

    Args:
        kind: The kind of the part, such as ``"redis"``, ``"replica"`` or ``"lmdb"``.
        name: The name of the part, such as ``"10.0.0.1:6379"``.
        values: The values, under the names that the server gives them.
        problem: The reason why there are no values; "" where there are.
    """

    kind: str
    name: str
    values: Mapping[str, Any] = {}
    problem: str = ""


class Store(ABC):
    """The place where states are kept. Subclass it to write your own store, and test it with ``StoreCompliance``.

    A key is ``limit.prefix`` followed by the values that identify a client. It may be any text, even with spaces,
    braces and control characters. A store that cannot hold such a key hashes it. A state is kept at least until
    ``reset_us`` after its last change, and at least one day when ``now`` is given. A store that fails or
    exceeds its timeout raises ``StoreError``. A state that cannot be decoded raises ``StateError``.

    ``now`` is the time in whole microseconds when the limiter was given a clock; None means the store's own time. The
    methods that start with ``a`` are called on an event loop. A store that does no I/O does not override them.
    """

    name: str = ""
    """The name in the log, such as a URL without login and options. By default the name of the class."""

    def __repr__(self) -> str:
        return f"<{' '.join(filter(None, (type(self).__name__, self.name)))}>"

    def check(self, limit: Limit) -> None:  # noqa: B027 - most stores can keep every limit
        """Check that the store can keep a limit. Called for every limit at the start.

        Args:
            limit: The limit.

        Raises:
            ConfigError: The store cannot keep the limit.
        """

    @abstractmethod
    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        """Decide all hits at one instant, as ``decide_all`` does, and write the new states of all or none.

        Args:
            hits: The hits of one request.
            now: The time in whole microseconds; None means the store's own time.
            consume: False for a peek, which writes nothing.

        Returns:
            One decision for each hit, with its ``hit`` set.
        """

    @abstractmethod
    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        """Make corrections, one after the other.

        Args:
            changes: The refunds and the additional charges.
            now: The time in whole microseconds; None means the store's own time.

        Returns:
            The time of each correction, in whole microseconds.
        """

    @abstractmethod
    def forget(self, keys: Iterable[str]) -> None:
        """Delete states.

        Args:
            keys: The keys.
        """

    def start(self) -> None:  # noqa: B027 - most stores have nothing to open
        """Connect, or open files, when a worker starts. It may take longer than the time budget of a call.

        Raises:
            StoreError: The store is unreachable. The worker starts anyway.
        """

    def ping(self) -> None:
        """Raise ``StoreError`` unless the store replies. A thread calls it while the store is unreachable."""
        self.forget([""])

    async def aping(self) -> None:
        """Async form of ``ping``."""
        await self.aforget([""])

    def facts(self) -> Iterable[Facts]:
        """Return what is known of each server, or of the files. ``ratelimit-mw check --connect`` shows it.

        It waits a bounded time for each server. A part without a reply has its reason.
        """
        return ()

    def list_keys(self, prefix: str, cursor: str = "") -> KeyPage:
        """Return the next keys that start with a prefix, including expired keys. Not every store can list keys.

        A call looks at a bounded number of keys, so a page may be empty before the last one. A key that is written
        between two pages may be on both, or on none.

        Args:
            prefix: The start of the keys.
            cursor: Where the page begins: ``next`` of the page before.

        Returns:
            The page.

        Raises:
            ConfigError: The store cannot list its keys, or ``cursor`` is not such a text.
        """
        name = self.name or type(self).__name__
        raise ConfigError(f"the store {name} cannot list its keys. Inspect the key of one client instead")

    def read_record(self, name: str) -> bytes | None:
        """Return the data of a record: a small document beside the states, such as the overrides of a limiter.

        The key of a record is ``record|`` and its name, so ``list_keys("record|")`` lists the records. Not every store
        keeps records.

        Args:
            name: The name, a word such as ``overrides``.

        Returns:
            The data; None where there is no such record.

        Raises:
            ConfigError: The store keeps no records.
        """
        raise self._without_records()

    def write_record(self, name: str, data: bytes | None, before: bytes | None) -> bool:
        """Write or delete a record in one atomic step, if it is still as it was read.

        Args:
            name: The name of the record.
            data: The new data, at most 1,000,000 bytes; None deletes the record.
            before: The data that were read, None without a record. If the record has changed since, nothing is written.

        Returns:
            Whether the record had the data ``before``, and is written.

        Raises:
            ConfigError: The store keeps no records.
            StoreError: The store is unreachable. The record may be written or not.
        """
        raise self._without_records()

    def _without_records(self) -> ConfigError:
        name = self.name or type(self).__name__
        return ConfigError(f"the store {name} keeps no records. Add read_record and write_record to its class")

    def close(self) -> None:  # noqa: B027 - most stores hold nothing open
        """Close connections and files. A second call changes nothing."""

    aapply = async_form(apply)
    acorrect = async_form(correct)
    aforget = async_form(forget)
    astart = async_form(start)
    alist_keys = async_form(list_keys)
    aread_record = async_form(read_record)
    awrite_record = async_form(write_record)
    aclose = async_form(close)


def numbers_in(cursor: str) -> list[int]:
    """Return the two numbers of a cursor such as ``3:1024``, zeros for the first page."""
    numbers = cursor.split(":") if cursor else ["0", "0"]
    if len(numbers) != 2 or not all(n.isascii() and n.isdigit() and len(n) <= _DIGITS for n in numbers):
        raise ConfigError(f"expected the cursor of an earlier page; got {cursor[:99]!r}", "cursor")
    return [int(number) for number in numbers]


def checked_store(store: object) -> Store:
    """Return the store. The message of ``ConfigError`` names only the type, because a repr may hold a password."""
    if isinstance(store, Store):
        return store
    expected = "expected a store URL or a Store, such as RedisStore(client=...)"
    raise ConfigError(f"{expected}; got {type(store).__name__}")
