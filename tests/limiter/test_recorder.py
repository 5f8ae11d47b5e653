"""Recorded outcomes and clients: what all processes together have allowed and rejected."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import time
from typing import Any

import pytest
from shared_store import SharedStore

from ratelimit_mw import ConfigError, Limiter, Rule, StoreError, load_settings
from ratelimit_mw.limiter.observers import recorder
from ratelimit_mw.limiter.observers.recorder import Recorder
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import ManualClock

ANN, BOB = {"ip": "192.0.2.7"}, {"ip": "192.0.2.8"}
HOUR, DAY = 3_600.0, 86_400.0
START = 999_990_000.0  # a full five minutes, and a full hour plus half an hour
RULES = [Rule(name="api", limits="2/minute"), Rule(name="new", limits="1/minute", mode="shadow")]


class Records(MemoryStore):
    """A store whose calls for records can fail, before (``down``) or after they are made (``mute``)."""

    down = mute = ""
    races = 0  # how many other processes write between a read and a write

    def read_record(self, name: str) -> bytes | None:
        self._fail("read", self.down)
        return super().read_record(name)

    def write_record(self, name: str, data: bytes | None, before: bytes | None, lifetime: int | None = None) -> bool:
        self._fail("write", self.down)
        self.races -= 1
        if self.races >= 0:
            return False
        is_written = super().write_record(name, data, before, lifetime)
        self._fail("write", self.mute)
        return is_written

    def _fail(self, call: str, failing: str) -> None:
        if call == failing:
            raise StoreError("it does not answer")


def limiter(record: str = "clients", store: Any = "memory://", rules: Any = RULES, **settings: Any) -> Limiter:
    loaded: Any = {"record": record, **settings}
    return Limiter(rules, store, ManualClock(START), load_settings(loaded))


def test_outcomes_of_all_limiters_of_a_store_are_together() -> None:
    """What a rule rejects, and what a rule in shadow mode would reject, are side by side."""
    store = Records()
    first, second = limiter(store=store), limiter("outcomes", store=store, lists={"deny": {"user": ["eve"]}})
    for rate in (first, second):
        for _ in range(2):
            rate.hit(ANN)
    second.hit({**ANN, "user": "eve"})
    first.outcomes()  # writes what is recorded here
    found = second.outcomes(last=HOUR)
    assert found.rules == {
        "api": {"allowed": 2, "rejected": 2},
        "new": {"allowed": 1, "shadow": 3},
        "": {"denied": 1},
    }
    assert (found.start, found.end) == (START - HOUR, START)
    assert second.outcomes(last=HOUR) == found  # nothing is counted twice


def test_the_async_methods_read_the_same() -> None:
    rate = limiter()

    async def scenario() -> None:
        for _ in range(3):
            await rate.ahit(ANN)
        assert (await rate.aoutcomes(last=60)).rules["api"] == {"allowed": 2, "rejected": 1}
        assert await rate.atop_clients(limit=1) == rate.top_clients(limit=1)
        await rate.ahit(ANN)
        await rate.aclose()

    asyncio.run(scenario())
    assert rate.outcomes(last=60).rules["api"] == {"allowed": 2, "rejected": 2}


def test_records_of_other_times_are_left_out() -> None:
    """The range starts with full five minutes, or with a full hour. Old records end."""
    clock = ManualClock(START)
    rate = Limiter(RULES, clock=clock, settings=load_settings({"record": "outcomes"}))
    rate.hit(ANN)
    assert rate.outcomes(last=60).rules["api"] == {"allowed": 1}
    clock.advance(361)
    assert rate.outcomes(last=60).rules == {}
    assert rate.outcomes(last=362).rules["api"] == {"allowed": 1}
    clock.advance(2 * DAY)
    assert rate.outcomes(last=HOUR).rules == rate.outcomes(last=DAY).rules == {}
    assert rate.outcomes(last=7 * DAY).rules["api"] == {"allowed": 1}


def test_the_clients_that_are_rejected_most_come_first() -> None:
    """Clients that a rule in shadow mode would reject are among them. A denied request has no client."""
    rate = limiter(lists={"deny": {"user": ["eve"]}})
    for features in (ANN, ANN, ANN, ANN, BOB, BOB, {**BOB, "user": "eve"}):
        rate.hit(features)
    found = [(each.rule, each.client, each.rejected, each.error) for each in rate.top_clients(last=HOUR)]
    assert found == [
        ("new", "ip=192.0.2.7", 3, 0),
        ("api", "ip=192.0.2.7", 2, 0),
        ("new", "ip=192.0.2.8", 1, 0),
    ]
    assert [each.rejected for each in rate.top_clients("api")] == [2]
    assert len(rate.top_clients(limit=1)) == 1
    assert rate.top_clients("none") == []


def test_counts_of_an_outage_belong_to_the_time_of_their_requests() -> None:
    """Those whose record has ended meanwhile are dropped."""
    store, clock = Records(), ManualClock(START)
    rate = Limiter(RULES, store, clock, load_settings({"record": "clients"}))
    assert rate.recorder is not None
    store.down = "read"
    for _ in range(3):
        rate.hit(ANN)
        rate.recorder.flush()
        clock.advance(1_800)
    store.down = ""
    assert rate.outcomes(last=60).rules == {}
    assert rate.outcomes(last=1_801).rules["api"] == {"allowed": 1}
    assert rate.outcomes(last=5_401).rules["api"] == {"allowed": 3}
    store.down = "read"
    rate.hit(ANN)
    rate.recorder.flush()
    clock.advance(9 * DAY)
    store.down = ""
    before = store.list_keys("record|")
    rate.recorder.flush()
    assert store.list_keys("record|") == before


def test_top_clients_reads_no_rule_that_cannot_be_among_them() -> None:
    """A range of seven days has 168 records for each rule."""
    rules = [Rule(name=f"rule-{number}", limits="1/day", match={"path": f"/{number}"}) for number in range(20)]
    store = Records()
    rate = limiter(store=store, rules=rules)
    for number in range(20):
        for _ in range(2 if number else 5):
            rate.hit({**ANN, "path": f"/{number}"})
    assert rate.recorder is not None
    rate.recorder.flush()
    read: list[str] = []
    store.read_record = lambda name: read.append(name) or MemoryStore.read_record(store, name)  # type: ignore[method-assign]
    (first,) = rate.top_clients(last=7 * DAY, limit=1)
    assert (first.rule, first.rejected) == ("rule-0", 4)
    assert len(read) == 2 * 169
    assert len(rate.top_clients(last=HOUR, limit=100)) == 20


def test_a_secret_keeps_clients_out_of_the_records() -> None:
    rate = limiter(secret="correct horse battery staple")
    for _ in range(3):
        rate.hit(ANN)
    assert {each.client for each in rate.top_clients()} == {rate.inspect().decisions[0].client}
    assert "192.0.2.7" not in rate.top_clients()[0].client


def test_many_and_long_clients_are_bounded() -> None:
    """The error is the bound of what the table has lost. Texts that UTF-8 cannot encode are escaped."""
    rate = limiter(rules=[Rule(name="api", limits="1/day", key=["user"])])
    for number in range(300):
        for _ in range(2):
            rate.hit({"user": f"user {number}"})
    for _ in range(11):
        rate.hit({"user": "heavy"})
    for user in ("x" * 5_000, "\udcff"):
        for _ in range(30):
            rate.hit({"user": user})
    found = rate.top_clients(limit=1_000)
    assert len(found) <= 100
    assert all(len(each.client) < 230 for each in found)
    longest, escaped, heavy = found[:3]
    assert {longest.client[:5], escaped.client} == {"user#", "user=\\udcff"}
    assert heavy.client == "user=heavy"
    assert heavy.rejected <= 10 <= heavy.rejected + heavy.error


def test_one_limit_for_everybody_has_no_client() -> None:
    rate = limiter(rules=[Rule(name="all", limits="1/minute", key=[])])
    for _ in range(2):
        rate.hit({})
    assert [(each.client, each.rejected) for each in rate.top_clients()] == [("", 1)]


def test_a_rejection_without_a_key_has_no_client() -> None:
    rate = limiter(rules=[Rule(name="users", limits="1/minute", key=["user"], when_missing="reject")])
    rate.hit({})
    assert rate.outcomes().rules == {"users": {"rejected": 1}}
    assert rate.top_clients() == []


@pytest.mark.parametrize("last", [0, -1.0, 7 * DAY + 1, float("nan")])
def test_the_range_is_checked(last: float) -> None:
    with pytest.raises(ConfigError, match=r"expected a time range of more than 0 and at most 604800 seconds; got"):
        limiter().outcomes(last)


@pytest.mark.parametrize("record", ["nothing", "outcomes"])
def test_an_error_names_the_setting(record: str) -> None:
    with pytest.raises(ConfigError, match=r'clients are not recorded. Set record = "clients" in your settings'):
        limiter(record).top_clients()


def test_a_store_without_records_is_an_error_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"record: <SharedStore> keeps no records. Add read_record and write_record"):
        limiter(store=SharedStore())


@pytest.mark.parametrize("failing", ["down", "mute"])
@pytest.mark.parametrize("call", ["read", "write"])
def test_a_store_that_fails_loses_no_count(call: str, failing: str, caplog: pytest.LogCaptureFixture) -> None:
    """Neither does it count anything twice, when a reply is lost. The log has one line."""
    store = Records()
    rate = limiter(store=store)
    for time_of_outage in range(3):
        setattr(store, failing, call if time_of_outage < 2 else "")
        for _ in range(2):
            rate.hit(ANN)
        assert rate.recorder is not None
        rate.recorder.flush()
    assert rate.outcomes(last=HOUR).rules["api"] == {"allowed": 2, "rejected": 4}
    assert rate.outcomes(last=DAY).rules["api"] == {"allowed": 2, "rejected": 4}
    assert [each.rejected for each in rate.top_clients()] == [5, 4]
    lines = [line for line in caplog.messages if "cannot record outcomes (it does not answer)" in line]
    assert len(lines) == (0 if (call, failing) == ("read", "mute") else 1)


def test_an_outage_while_the_outcome_of_a_write_is_unknown_loses_nothing() -> None:
    store = Records()
    rate = limiter("outcomes", store=store)
    rate.hit(ANN)
    assert rate.recorder is not None
    for failing, call in (("mute", "write"), ("down", "read"), ("mute", ""), ("down", "")):
        setattr(store, failing, call)
        rate.recorder.flush()
    assert rate.outcomes().rules["api"] == {"allowed": 1}


@pytest.mark.parametrize("is_async", [False, True])
def test_closing_tries_again(is_async: bool) -> None:
    """A reply that is lost costs one more call."""

    class Once(Records):
        def _fail(self, call: str, failing: str) -> None:
            if call == failing:
                self.mute = ""
            super()._fail(call, failing)

    store = Once()
    rate = limiter(store=store)
    rate.hit(ANN)
    store.mute = "write"
    _close(rate, is_async)
    assert limiter(store=store).outcomes().rules["api"] == {"allowed": 1}


@pytest.mark.parametrize("is_async", [False, True])
def test_closing_ends_while_the_store_is_away(is_async: bool) -> None:
    store = Records()
    rate = limiter(store=store)
    rate.hit(ANN)
    store.down = "write"
    _close(rate, is_async)
    store.down = ""
    assert limiter(store=store).outcomes().rules == {}


def _close(rate: Limiter, is_async: bool) -> None:
    if is_async:
        asyncio.run(rate.aclose())
    else:
        rate.close()


def test_a_lost_race_is_run_again() -> None:
    store = Records()
    rate = limiter(store=store)
    for races in (3, 1_000):
        rate.hit(ANN)
        store.races = races
        assert rate.recorder is not None
        rate.recorder.flush()
    store.races = 0
    assert rate.outcomes().rules["api"] == {"allowed": 2}


def test_a_damaged_record_starts_anew() -> None:
    store = Records()
    rate = limiter(store=store)
    rate.hit(ANN)
    rate.outcomes()
    for key in store.list_keys("record|").keys:
        name = key.removeprefix("record|")
        store.write_record(name, b"\xc1", store.read_record(name))
    assert rate.outcomes().rules == {}
    rate.hit(ANN)
    assert rate.outcomes().rules["api"] == {"allowed": 1}


def test_a_thread_writes_at_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even after the limiter was closed and is used again. It ends with the limiter."""
    monkeypatch.setattr(recorder, "_INTERVAL", 0.01)
    store = Records()
    rate, other = limiter(store=store), limiter(store=store)
    for allowed in (1, 2):
        rate.hit(ANN)
        deadline = time.monotonic() + 30
        while other.outcomes().rules.get("api") != {"allowed": allowed}:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        rate.close()
    rate.hit(BOB)
    assert rate.recorder is not None
    thread = rate.recorder._beat._thread
    assert thread is not None
    del rate
    gc.collect()
    thread.join(180)
    assert not thread.is_alive()


def test_a_forked_child_records_its_own_counts() -> None:
    store = Records()
    rate = limiter(store=store)
    rate.hit(ANN)
    child = os.fork()
    if not child:
        os._exit(0 if rate.outcomes().rules == {} else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert rate.outcomes().rules["api"] == {"allowed": 1}


def test_threads_lose_no_count() -> None:
    store = Records()
    rate = limiter(store=store)

    def work() -> None:
        for _ in range(200):
            rate.hit(ANN)
            rate.recorder.flush()  # type: ignore[union-attr]

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rate.outcomes().rules["api"] == {"allowed": 2, "rejected": 798}
    assert [each.rejected for each in rate.top_clients()] == [799, 798]


def test_recorded_clients_stay_out_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = Records()
    rate = limiter(store=store)
    store.down = "read"
    for _ in range(3):
        rate.hit(ANN)
    rate.close()
    assert caplog.messages
    assert "192.0.2.7" not in caplog.text
    assert isinstance(rate.recorder, Recorder)


def test_the_end_of_a_process_writes_the_rest() -> None:
    """``atexit`` calls it, even where no server closes the limiter."""
    store = Records()
    open_one = limiter("outcomes", store=store)
    open_one.hit(ANN)
    recorder._close_all()
    assert limiter("outcomes", store=store).outcomes(last=HOUR).rules == {"api": {"allowed": 1}, "new": {"allowed": 1}}
