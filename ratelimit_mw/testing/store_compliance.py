"""`StoreCompliance` checks a store against the contract of `Store`."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, ClassVar
from uuid import uuid4

from ..algorithms import build_limit
from ..algorithms.fixed_window import CalendarWindow
from ..clock import SECOND
from ..decision import Correction, Decision, Hit, Limit
from ..errors import ConfigError
from ..quota import Quota
from ..stores import Store
from ..stores.base import MAX_RECORD, RECORD_PREFIX
from .reference_store import check_equal, compare_with_reference, values_of
from .store_suite import (
    ALGORITHMS,
    CLIENT,
    COUNTS_REJECTED,
    DAY,
    NOW,
    WAYS,
    Spec,
    StoreHandle,
    hits_of,
    limit_of,
    limits_with_ban,
    store_test,
)

HOSTILE = (
    *("", " ", "a", "A", "a ", " a", "a b", "a\tb", "a\nb", "a\r\nb", "a\0b", "a\0", "a\x7fb", "a\x85b", "a\u2028b"),
    *("{a}b", "{a}c", "{}", "{", "a%20b", "a+b", "%", "*", "?", "a|b", "a:b", "a/b", "\\", "'", '"', "-1", "0"),
    *("\r\nset x 0 0 1\r\n1\r\n", "get x", "noreply", "END", "$-1\r\n", "\ud800", "\udfff", "a\ud800", "\udcc3\udca9"),
    *("é", "e\u0301", "É", "日本", "日" * 84, "日" * 85, "😀", "\u0131", "i", "K", "k", "\u212a"),
    *("x" * length for length in (*range(180, 260), 510, 511, 512, 513, 10_000)),
    *("x" * 10_000 + end for end in ("a", "b")),
)
_ANY_BYTES = bytes(range(256)) + b"\r\nEND\r\n"


class StoreCompliance:
    """Check a store against the contract of `Store`, in about 40 tests.

    Subclass it in a pytest module, under a name that starts with ``Test``. Every test runs through the blocking
    methods and through the async methods. Each test closes its stores and uses keys of its own, so the stores may
    share a server that keeps running. Make fixtures that ``make_store`` needs ``autouse``.

    Attributes:
        algorithms: The algorithms to test with. The default is all built-in algorithms.

    Example:
        class TestMyStore(StoreCompliance):
            def make_store(self):
                return MyStore()
    """

    algorithms: ClassVar[Sequence[Spec]] = ALGORITHMS

    def make_store(self) -> Store:
        """Return a store. It may contain other keys already."""
        raise NotImplementedError

    def make_second(self, store: Store) -> Store:
        """Return a second handle on the state of a store, as another worker process has one.

        Args:
            store: The store that `make_store` returned.

        Returns:
            A new handle, or ``store`` itself when there can be no other. The suite then checks that the blocking and
            the async methods share one state.
        """
        return store

    def wait(self, seconds: float) -> None:
        """Let time pass on the store's own clock. The default sleeps; override it when that clock is manual.

        Args:
            seconds: How long, in seconds.
        """
        time.sleep(seconds)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Run every test with blocking and async methods."""
        metafunc.parametrize("way", WAYS)

    def keeps_time(self, name: str) -> bool:
        """Return whether the keys of an algorithm keep their last time, so that its clock may go back in the tests.

        Args:
            name: The name of the algorithm.
        """
        return True

    def check_decisions(self, actual: Sequence[Decision], expected: Sequence[Decision], place: str) -> None:
        """Raise unless the decisions are those of the reference. Override it for a store that rounds waits up.

        Args:
            actual: The decisions of the store.
            expected: Those of the reference.
            place: Where they were made, for the error.

        Raises:
            AssertionError: They differ.
        """
        for own, other in zip(actual, expected, strict=True):
            check_equal(values_of(own), values_of(other), f"{own.source}, {place}")

    @contextmanager
    def _open_second(self, first: StoreHandle, way: str = "") -> Iterator[StoreHandle]:
        """Open a second handle on the state of the first one, with the same methods or those of another way."""
        handle = WAYS[way] if way else type(first)
        with closing(handle(self.make_second(first.store))) as second:
            yield second

    # -- decisions --

    @store_test
    def test_decisions_equal_those_of_the_pure_functions(self, store: StoreHandle, spec: Spec) -> None:
        """Random traces give equal decisions, even when time goes back.

        A trace mixes hits, peeks, costs of zero, charges, refunds and deleted keys. Every second trace has a shadow
        limit.
        """
        for seed, quota in enumerate(("5/minute", "200/hour", "7/10s")):
            limits = [limit_of(quota, spec), limit_of("9/minute", spec, shadow=seed % 2 == 1)]
            compare_with_reference(self, store, limits, NOW, seed)

    @store_test
    def test_a_calendar_quota_ends_at_midnight(self, store: StoreHandle) -> None:
        """Random traces over the edges of a day of 23 hours and of other periods give equal decisions."""
        start = 1_774_738_800 * SECOND  # 2026-03-29 in Berlin, when the clocks go forward
        own = store.hit(limit_of("2 per calendar month", zone="Europe/Berlin"), None)
        end = CalendarWindow(own.quota).end_of(own.at_us)
        check_equal(own.at_us + own.reset_us, end, "the end by the store's own clock")
        for seed, (period, zone) in enumerate((("day", "Europe/Berlin"), ("week", "UTC"), ("month", "Asia/Kolkata"))):
            limit = limit_of(f"4 per calendar {period}", zone=zone)
            compare_with_reference(self, store, [limit], start - 5 * SECOND, seed)

    @store_test
    def test_the_largest_numbers_are_exact(self, store: StoreHandle, spec: Spec) -> None:
        """Amounts reach 10**12, and periods 366 days. Those of a log are halved until the store keeps them."""
        for seed, (amount, period) in enumerate(((10**12, "366d"), (200_000, "day"))):
            compare_with_reference(self, store, [_largest(store, amount, period, spec)], NOW, seed)

    @store_test
    def test_one_request_with_all_algorithms(self, store: StoreHandle) -> None:
        """All or nothing holds across different kinds of state."""
        limits = [limit_of("6/minute", spec) for spec in self.algorithms]
        for seed in range(3):
            compare_with_reference(self, store, limits, NOW + seed * DAY, seed)

    @store_test
    def test_a_ban_counts_the_rejections_of_its_rule(self, store: StoreHandle, spec: Spec) -> None:
        """Each rejection counts once, in the same step as the decision. A banned client consumes nothing.

        The keys of a rule and its ban have one hash tag, ``{...}``, in front of which they differ.
        """
        clients = ("{ip=192.0.2.7}", "{ip=192.0.2.8}")
        for seed in range(3):
            limits = limits_with_ban(spec, after=1 + seed, shadow=seed == 2)
            compare_with_reference(self, store, limits, NOW, seed, clients)

    @store_test
    def test_bans_grow_and_can_be_set(self, store: StoreHandle) -> None:
        """A rejection during a ban is not counted. Each ban is longer, up to the longest one."""
        ban = limits_with_ban("fixed-window", after=1)[0]
        rejection = Correction(ban, ban.prefix + CLIENT, 1, None)
        now = NOW
        for seconds in (120, 240, 480, 960, 1000, 1000):
            store.correct([rejection, rejection], now)
            check_equal(store.hit(ban, now).retry_us, seconds * SECOND, f"the ban of {seconds} seconds")
            now += seconds * SECOND
            check_equal(store.hit(ban, now).allowed, True, f"allowed after {seconds} seconds")
        for seconds in (60, 30):
            store.correct([rejection._replace(limit=ban.lasting(seconds * SECOND))], now)
            check_equal(store.hit(ban, now).retry_us, seconds * SECOND, f"a ban set to {seconds} seconds")
        store.forget([rejection.key])
        check_equal(store.hit(ban, now).allowed, True, "allowed after forget")

    @store_test
    def test_a_refund_from_before_a_reset_is_void(self, store: StoreHandle, spec: Spec) -> None:
        """A charge belongs to the state that counted it, and not to the state that began after a reset."""
        limit, later = limit_of("50/hour", spec), NOW + 61 * SECOND
        key = limit.prefix + CLIENT
        refunds = [Correction.refund(store.hit(limit, now, cost=20)) for now in (NOW, NOW + 1)]
        store.forget([key])
        store.hit(limit, later, cost=50)
        store.correct(refunds, later)
        check_equal(store.peek(limit, later).remaining, 0, "remaining after the refunds")
        store.forget([key])
        store.correct([Correction(limit, key, 20, None), *refunds], later)
        remaining = store.peek(limit, later).remaining
        check_equal(remaining, 30, "remaining after a charge, which counts, and the refunds")

    @store_test
    def test_a_changed_amount_keeps_what_was_consumed(self, store: StoreHandle, spec: Spec) -> None:
        """A limit with another amount and the same period continues with the same key."""
        wide = limit_of("10/minute", spec)
        narrow = build_limit(wide.rule, 0, Quota.parse("8/minute"), spec)
        store.apply([Hit(wide, wide.prefix + CLIENT, 6)], NOW)
        check_equal([store.peek(limit).remaining for limit in (wide, narrow)], [4, 2], "6 of 10, and of 8")

    @store_test
    def test_empty_calls_and_pings_count_nothing(self, store: StoreHandle) -> None:
        """Every method accepts an empty list, and a store that works answers a ping without an error."""
        limit = limit_of("5/minute")
        store.hit(limit)
        check_equal([store.apply([], NOW), store.correct([], NOW)], [[], []], "no hits and no corrections")
        store.forget([])
        store.ping()
        check_equal(store.peek(limit).remaining, 4, "remaining after empty calls and a ping")

    # -- workers at the same time --

    @store_test
    def test_a_race_on_two_keys_is_all_or_nothing(self, store: StoreHandle, spec: Spec) -> None:
        """An allowed request counts under both keys, a rejected one under neither."""
        wide, narrow = limit_of("100/minute", "sliding-window-log"), limit_of("20/minute", spec)
        requests = [hits_of(wide, narrow), hits_of(narrow, wide)] * 40
        allowed = sum(all(d.allowed for d in decisions) for decisions in store.together(requests, NOW))
        check_equal(allowed <= 20, True, f"{allowed} allowed by a limit of 20")
        check_equal(store.peek(wide).remaining, 100 - allowed, f"remaining of 100 after {allowed}")
        remaining = store.peek(narrow).remaining
        # With count_rejected, a rejection may be caused by a hit that was refunded afterwards.
        least = 0 if spec == COUNTS_REJECTED else 20 - allowed
        check_equal(least <= remaining <= 20 - allowed, True, f"{remaining} remain of 20 after {allowed}")

    @store_test
    def test_a_race_of_two_handles_is_exact(self, store: StoreHandle, spec: Spec) -> None:
        """Two workers at the same time allow exactly the limit of 50 of their 200 requests, without errors."""
        limit = limit_of("50/minute", spec)
        with self._open_second(store) as second, ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda handle: handle.together([hits_of(limit)] * 100, NOW), (store, second)))
            allowed = [d for decisions in results for (d,) in decisions if d.allowed]
            check_equal(len(allowed), 50, "allowed requests, of 100 by each handle")
            more = [handle.hit(limit).allowed for handle in (store, second)]
            check_equal(more, [False, False], "one more by each handle")

    @store_test
    def test_two_handles_share_their_state(self, first: StoreHandle, spec: Spec) -> None:
        """Each worker sees the counts of the other, through blocking and async methods."""
        limit = limit_of("10/minute", spec)
        for way in WAYS:
            with self._open_second(first, way) as second:
                remaining = [handle.hit(limit, NOW).remaining for handle in (first, second, first, second)]
                check_equal(remaining, [9, 8, 7, 6], "counted in turns")
                second.forget([limit.prefix + CLIENT])
                check_equal(first.peek(limit).remaining, 10, "deleted by another handle")

    # -- keys: any text that a client sends is a key of its own --

    @store_test
    def test_hostile_keys_are_distinct(self, store: StoreHandle) -> None:
        """Any two texts are two keys, or two rules: spaces, newlines, NUL, braces, any length.

        ``correct`` and ``forget`` address the same key as ``apply``.
        """
        limits = [limit_of("1/minute", spec) for spec in self.algorithms[:5:2]]
        requests = [Hit(limit, limit.prefix + text, 1) for limit in limits for text in HOSTILE]
        requests += [hit for text in HOSTILE for hit in hits_of(limit_of("1/minute", rule=text))]
        shared = [hit.key for hit in requests if not store.apply([hit], NOW)[0].allowed]
        check_equal(shared, [], "keys that shared a count with an earlier key")
        lost = [hit.key for hit in requests if store.apply([hit], NOW)[0].allowed]
        check_equal(lost, [], "keys that lost their count")
        peeks = [[hit._replace(cost=0)] for hit in requests]
        store.forget([hit.key for hit in requests])
        check_equal([store.apply(hits, NOW)[0].remaining for hits in peeks], [1] * len(peeks), "forgotten")
        store.correct([Correction(*hit, None) for hit in requests], NOW)
        check_equal([store.apply(hits, NOW)[0].remaining for hits in peeks], [0] * len(peeks), "charged")

    # -- times and expiry --

    @store_test
    def test_a_charge_beyond_the_limit_is_kept(self, store: StoreHandle, spec: Spec) -> None:
        """The wait is exact, even when it is longer than the usual lifetime of a state."""
        limit = limit_of("5/minute", spec)
        key = limit.prefix + CLIENT
        charges = [Correction(limit, key, 40, None), Correction(limit, key, 1, None)]
        check_equal(store.correct(charges, NOW), [NOW] * 2, "times")
        rejected = store.peek(limit, NOW, cost=1)
        check_equal((rejected.allowed, rejected.remaining), (False, 0), "41 of 5")
        at = NOW + (rejected.retry_us or 0)
        check_equal(store.peek(limit, at - 1, cost=1).allowed, False, "one microsecond before retry_us")
        check_equal(store.hit(limit, at).allowed, True, "at retry_us")

    @store_test
    def test_a_charge_of_any_size_is_kept(self, store: StoreHandle) -> None:
        """It may last for longer than a number of 64 bits can hold."""
        limit = limit_of("1/366d", "gcra")
        store.correct([Correction(limit, limit.prefix + CLIENT, 10**12, None)])
        check_equal(store.hit(limit).allowed, False, "after a charge for ages")

    @store_test
    def test_a_given_time_overrides_the_clock_of_the_store(self, store: StoreHandle) -> None:
        """A time long ago or far ahead decides alone, however much real time passes."""
        for now in (1_000_000 * SECOND, NOW, 4_102_444_800 * SECOND):
            limits = [limit_of("2/20ms", spec) for spec in self.algorithms]
            for limit in limits:
                store.hit(limit, now, cost=2)
            self.wait(0.05)
            again = [store.hit(limit, now).allowed for limit in limits]
            check_equal(again, [False] * len(limits), f"at {now} again, after 50 ms of real time")
            later = [store.hit(limit, now + 2 * DAY, cost=2).allowed for limit in limits]
            check_equal(later, [True] * len(limits), "two days on")

    @store_test
    def test_no_key_expires_early(self, store: StoreHandle) -> None:
        """On the store's own clock a rejected client is allowed at its retry time, and not before."""
        due = {}
        for limit in [limit_of("2/300ms", spec) for spec in self.algorithms if spec != COUNTS_REJECTED]:
            rejected = _exhaust(store, limit)
            check_equal(rejected.allowed, False, f"{limit}: right after it was exhausted")
            due[limit] = rejected.at_us + (rejected.retry_us or 0)
        for _ in range(200):
            self.wait(0.01)
            for limit, allowed_at in _peek_allowed(store, list(due)).items():
                check_equal(allowed_at >= due.pop(limit), True, f"{limit}: allowed at {allowed_at}")
            if not due:
                break
        check_equal(list(due), [], "limits that never allowed a request again")

    @store_test
    def test_corrections_use_the_clock_of_the_store(self, store: StoreHandle) -> None:
        """A charge without a time is made at the store's own time, and later hits include it."""
        limit = limit_of("5/day", "sliding-window-log")
        before = store.hit(limit, None).at_us
        (at,) = store.correct([Correction(limit, limit.prefix + CLIENT, 4, None)])
        after = store.hit(limit, None)
        check_equal((after.allowed, after.remaining), (False, 0), "1 + 4 of 5")
        check_equal(before <= at <= after.at_us, True, f"{before} <= {at} <= {after.at_us}")

    @store_test
    def test_close_can_be_called_twice(self, store: StoreHandle) -> None:
        """Some frameworks close an application twice."""
        check_equal(store.hit(limit_of("1/minute")).allowed, True, "a store that works")
        store.close_store()
        store.close_store()

    # -- records, which a store need not keep --

    @store_test
    def test_a_record_is_written_only_as_it_was_read(self, store: StoreHandle) -> None:
        """A write that expects other data changes nothing. A record has up to 1,000,000 bytes, and is no state."""
        if not _keeps_records(store):
            return
        name, longest = f"test:{uuid4().hex}", b"\r\n" * (MAX_RECORD // 2)
        limits = [limit_of("5/minute", rule=rule) for rule in (name, RECORD_PREFIX + name, RECORD_PREFIX)]
        for data, before, wins in (
            (b"1", b"0", False),
            (_ANY_BYTES, None, True),
            (b"2", None, False),
            (b"2", b"1", False),
            (b"", _ANY_BYTES, True),
            (None, None, False),
            (longest, b"", True),
            (None, longest, True),
            (None, None, True),
        ):
            kept = data if wins else store.read_record(name)
            check_equal(
                store.write_record(name, data, before), wins, f"a write of {data!r:.40} that expects {before!r:.40}"
            )
            check_equal([store.hit(limit, NOW, client="").remaining for limit in limits], [4] * 3, "remaining")
            store.forget([limit.prefix for limit in limits])
            check_equal(store.read_record(name) == kept, True, "the data after it")

    @store_test
    def test_two_handles_share_their_records(self, first: StoreHandle) -> None:
        """Each worker sees the records of the other. Of two writes at the same time, each that succeeds counts."""
        if not _keeps_records(first):
            return
        for way in WAYS:
            name = f"test:{uuid4().hex}"
            with self._open_second(first, way) as second, ThreadPoolExecutor(2) as pool:
                check_equal(first.write_record(name, b"1", None), True, "the write of one")
                check_equal(second.write_record(name, b"2", b"1"), True, "the write of the other")
                check_equal(first.write_record(name, b"3", b"1"), False, "the late write of the first")
                won = sum(pool.map(lambda handle: sum(_add_one(handle, name) for _ in range(50)), (first, second)))  # noqa: B023
                check_equal(int(first.read_record(name) or b"0"), 2 + won, "the writes that succeeded")
                check_equal(won >= 50, True, f"{won} of 100 writes succeeded")


def _largest(store: StoreHandle, amount: int, period: str, spec: Spec) -> Limit:
    """Return a limit that the store keeps. Its amount is halved until the store does, if it keeps any."""
    try:
        limit = limit_of(f"{amount}/{period}", spec)
        store.store.check(limit)
    except ConfigError:
        if amount == 1:
            raise
        return _largest(store, amount // 2, period, spec)
    return limit


def _exhaust(store: StoreHandle, limit: Limit) -> Decision:
    """Hit a limit until it rejects. Several tries are needed when a window ends in between."""
    decision = store.hit(limit, None, cost=2)
    for _ in range(5):
        if decision.allowed:
            decision = store.hit(limit, None, cost=2)
    return decision


def _peek_allowed(store: StoreHandle, limits: list[Limit]) -> dict[Limit, int]:
    """Return the limits that would allow a cost of 2 now, with the time of that decision."""
    peeks = {limit: store.peek(limit, None, cost=2) for limit in limits}
    return {limit: decision.at_us for limit, decision in peeks.items() if decision.allowed}


def _keeps_records(handle: StoreHandle) -> bool:
    return type(handle.store).read_record is not Store.read_record


def _add_one(handle: StoreHandle, name: str) -> bool:
    before = handle.read_record(name)
    return bool(handle.write_record(name, b"%d" % (int(before or b"0") + 1), before))
