"""Test tools that replace the clocks of Python change no limit. The clocks of a limiter are those of the machine."""

import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from uuid import uuid4

import time_machine
from folders import ROOT
from freezegun import freeze_time
from memcached_handles import address
from servers import Server
from tables import each

from ratelimit_mw import Limiter, Rule, clock

ANN = {"ip": "192.0.2.7"}
YEARS = ["1990-01-01", "2099-01-01"]
Freeze = Callable[[], AbstractContextManager[object]]
TOOLS = [
    partial(tool, year, tick=tick)
    for tool in (freeze_time, time_machine.travel)
    for year in YEARS
    for tick in (False, True)
]


@each("freeze", TOOLS)
def test_a_client_is_not_limited_for_years(memcached_server: Server, freeze: Freeze) -> None:
    """Hits before, in and after such a test count together, and the time to wait is that of the limit.

    The processes of Memcached compare their wall clocks.
    """
    for store in ("memory://", address(memcached_server)):
        limiter = Limiter([Rule(name=f"frozen-{uuid4()}", limits="3/minute", algorithm="sliding-window-log")], store)
        assert limiter.hit(ANN)
        with freeze():
            assert limiter.hit(ANN)
            assert Limiter([Rule(name="api", limits="1/minute")]).hit(ANN).decisions[0].reset_after <= 60
        assert limiter.hit(ANN)
        rejected = limiter.hit(ANN)
        assert not rejected
        assert 0 < (rejected.retry_after or 0) <= 60
        limiter.close()


@each("freeze", TOOLS)
def test_settings_are_followed_after_such_a_test(tmp_path: Path, freeze: Freeze) -> None:
    """The next look for changes is due soon, and not in years."""
    file = tmp_path / "ratelimit.toml"
    file.write_text('reload_interval = "2s"\n')
    limiter = Limiter.from_settings(file)
    with freeze():
        assert limiter.reloads.watch is not None
        limiter.reloads.watch.due_at = 0.0
        limiter.hit(ANN)
    assert limiter.reloads.watch.due_at <= time.monotonic() + 2


@each("freeze", TOOLS)
def test_an_import_in_such_a_test_finds_the_real_clocks(freeze: Freeze) -> None:
    """The tool has replaced them by then."""
    with freeze():
        machine = clock._Machine()
        assert abs(machine.time_ns() - clock.machine.time_ns()) < 60e9
    assert abs(machine.time_ns() - time.time_ns()) < 60e9
    assert abs(machine.monotonic_ns() - time.monotonic_ns()) < 60e9
    assert abs(machine.monotonic() - time.monotonic()) < 60


def test_only_one_module_reads_the_clocks() -> None:
    """All others have them from there. Commands, which no test of yours runs, may use those of Python."""
    package = ROOT / "ratelimit_mw"
    reading = re.compile(r"^from time import|\btime\.(time|monotonic)(_ns)?\(\)(?! //)", re.M)
    files = [file for file in package.rglob("*.py") if file.relative_to(package).parts[0] not in ("cli", "clock.py")]
    assert [str(file) for file in files if reading.search(file.read_text("utf-8"))] == []
