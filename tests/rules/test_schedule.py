"""Options of a rule that change its limits: ``schedule`` with ``timezone``, and ``reserve`` with ``[priorities]``."""

import sys
import zoneinfo
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_store import SharedStore
from tables import each, expect_error

from ratelimit_mw import INVALID, ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.operations.overview import Overview, row_of
from ratelimit_mw.rules.decorators import make_mark
from ratelimit_mw.rules.priorities import DEFAULT_PRIORITIES, parse_priorities
from ratelimit_mw.rules.schedule import Schedule
from ratelimit_mw.testing import ManualClock

BERLIN = ZoneInfo("Europe/Berlin")
WORK = "mon-fri 08:00-18:00"
MONDAY = date(2026, 1, 5)
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def rule_of(*ranges: str, **options: Any) -> Rule:
    return Rule(name="exports", limits="200/minute", schedule=dict.fromkeys(ranges, "50/minute"), **options)


def schedule_of(*ranges: str, zone: Any = UTC) -> Schedule:
    return Schedule(dict.fromkeys(ranges, ()), zone)


def us(moment: datetime) -> int:
    """Return an aware moment in whole microseconds since 1970."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def is_in(text: str, moment: str) -> bool:
    """Return whether a moment of UTC, such as "2026-01-05 08:00", is in a range."""
    return schedule_of(text).at(us(datetime.fromisoformat(moment).replace(tzinfo=UTC))) == text


def test_a_range_has_its_moments() -> None:
    """Its first microsecond is in the range, and its end is not. January 5, 2026 is a Monday."""
    for text, inside, outside in (
        (WORK, ["01-05 08:00", "01-09 17:59:59.999999"], ["01-05 07:59:59.999999", "01-09 18:00", "01-10 12:00"]),
        ("MON-fri  8:00-18:00", ["01-05 08:00"], ["01-10 08:00"]),
        ("sat,sun", ["01-10 00:00", "01-11 23:59"], ["01-09 23:59", "01-12 00:00"]),
        ("sat-mon", ["01-10 12:00", "01-11 12:00", "01-12 12:00"], ["01-09 12:00", "01-13 12:00"]),
        ("wed", ["01-07 12:00"], ["01-06 12:00", "01-08 12:00"]),
        ("22:00-06:00", ["01-05 22:00", "01-05 05:59", "01-11 23:00"], ["01-05 06:00", "01-05 21:59"]),
        ("fri 22:00-06:00", ["01-09 22:00", "01-10 05:59"], ["01-09 05:00", "01-10 06:00", "01-10 22:00"]),
        ("sun 22:00-06:00", ["01-11 22:00", "01-12 05:59"], ["01-12 06:00", "01-11 05:00"]),
        ("22:00-24:00", ["01-05 23:59"], ["01-05 00:00"]),
        ("22:00-00:00", ["01-05 23:59"], ["01-05 00:00"]),
        ("00:00-24:00", ["01-05 00:00", "01-05 23:59"], []),
    ):
        assert [moment for moment in inside if not is_in(text, f"2026-{moment}")] == [], (text, inside)
        assert [moment for moment in outside if is_in(text, f"2026-{moment}")] == [], (text, inside)


def test_a_range_follows_the_clock_on_the_wall() -> None:
    """In Berlin, 02:00 is skipped on March 29, 2026, and 02:00 to 03:00 occurs twice on October 25. Times are UTC."""
    for text, expected in (
        (
            "02:00-04:00",
            {"spring": ["01:00", "01:30"], "autumn": ["00:00", "00:30", "01:00", "01:30", "02:00", "02:30"]},
        ),
        ("02:00-03:00", {"spring": [], "autumn": ["00:00", "00:30", "01:00", "01:30"]}),
        ("02:00-02:30", {"spring": [], "autumn": ["00:00", "01:00"]}),
    ):
        schedule, found = schedule_of(text, zone=BERLIN), dict[str, list[str]]()
        for name, day in (("spring", date(2026, 3, 29)), ("autumn", date(2026, 10, 25))):
            halves = [datetime.combine(day, time(), UTC) + timedelta(minutes=30 * i) for i in range(12)]
            found[name] = [f"{half:%H:%M}" for half in halves if schedule.at(us(half))]
        assert found == expected


def test_a_system_without_time_zones_knows_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install. The package tzdata is hidden, too."""
    for name in ("tzdata", "tzdata.zoneinfo", "tzdata.zoneinfo.Asia"):
        monkeypatch.setitem(sys.modules, name, None)
    zoneinfo.reset_tzpath(to=[])
    zoneinfo.ZoneInfo.clear_cache()
    try:
        assert rule_of(WORK, timezone="UTC").timezone is UTC
        expect_error("no data of time zones for 'Asia/Tokyo': pip install tzdata", rule_of, WORK, timezone="Asia/Tokyo")
    finally:
        zoneinfo.reset_tzpath()


def test_defaults_may_have_the_time_zone() -> None:
    """They are for the rules with a schedule, and for calendar quotas, even those of an override. Others show none."""
    scheduled: Any = {"limits": "9/minute", "schedule": {WORK: "5/minute"}}
    rules: Any = [scheduled, {**scheduled, "timezone": "Asia/Tokyo"}, {"limits": "9/minute"}]
    found = load_settings({"defaults": {"timezone": "Europe/Berlin"}, "rules": rules}).rules
    assert [str(rule.timezone) for rule in found] == ["Europe/Berlin", "Asia/Tokyo", "Europe/Berlin"]
    limiter = Limiter.from_settings({"defaults": {"timezone": "Europe/Berlin"}, "rules": rules[2:]})
    limiter.clients.override("rule-1", {"ip": "192.0.2.7"}, "9 per calendar day")
    assert limiter.hit({"ip": "192.0.2.7"}).decisions[0].quota.zone == "Europe/Berlin"


def test_a_decorator_keeps_its_time_zone_where_settings_change_other_options() -> None:
    """As long as something depends on it. A schedule that is removed leaves the calendar quotas."""
    options: Any = {"timezone": "Asia/Tokyo", "schedule": {WORK: "5 per calendar month"}}
    for changes, quota, zone in (
        ({"schedule": {}}, "9 per calendar month", "Asia/Tokyo"),
        ({"schedule": {}, "timezone": "Asia/Kolkata"}, "9 per calendar month", "Asia/Kolkata"),
        ({"schedule": {}, "limits": "9 per calendar day"}, "9 per calendar day", "Asia/Tokyo"),
        ({"schedule": {}, "limits": "9/minute"}, "9/minute", ""),
    ):
        settings: Any = {"rules": [{"overrides": "a.view", **changes}]}
        limiter = Limiter.from_settings(settings)
        limiter.reloads.adopt([make_mark("9 per calendar month", options, "a.view")])
        [found] = limiter.rules.by_name["a.view"].source.quotas
        assert (str(found), found.zone) == (quota, zone), changes


def test_a_time_zone_without_a_schedule_is_an_error() -> None:
    """It would have no effect. Settings may change that of a decorator, whose schedule they may also remove."""
    nothing = 'timezone: no limit of the rule uses it. Add a schedule, or a limit such as "100 per calendar month"'
    expect_error(f"^{nothing}", Rule, limits=["9/minute", "20/hour"], timezone="Asia/Tokyo")
    zone: Any = {"timezone": "Asia/Tokyo"}
    scheduled = {"schedule": {WORK: "5/minute"}}

    def adopted(changes: Any, options: Any) -> Rule:
        limiter = Limiter.from_settings({"rules": [{"overrides": "a.view", **changes}]})
        limiter.reloads.adopt([make_mark("9/minute", options, "a.view")])
        return limiter.rules.by_name["a.view"].source

    expect_error(rf"^rules\[0\]\.{nothing}", adopted, zone, {})
    assert str(adopted(zone, scheduled).timezone) == "Asia/Tokyo"
    assert adopted({"schedule": {}}, {**scheduled, **zone}).schedule is None
    expect_error(r"timezone: expected a name such as", adopted, {"timezone": "Asia/Tokio"}, {})


def test_check_lists_all_ranges() -> None:
    """For people with the time zone, and for programs."""
    rule = rule_of(WORK, "sat", timezone="Europe/Berlin")
    rules = Limiter([rule]).rules
    overview, compiled = Overview(rules, {}), rules.rules[0]
    shown = overview.as_json(compiled)
    row = row_of(shown)
    assert row["limits"] == ["200/minute", f"{WORK}: 50/minute", "sat: 50/minute"]
    assert row["mode"] == ["enforce", 'timezone = "Europe/Berlin"']
    assert (shown["schedule"], shown["timezone"]) == ({WORK: ["50/minute"], "sat": ["50/minute"]}, "Europe/Berlin")


# -- a calendar that knows nothing of the code ----------------------------------------------------------------------

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca"]
MINUTES = st.integers(0, 1440 // 30 - 1).map(lambda half: half * 30)
CHOSEN = st.lists(st.integers(0, 6), min_size=1, max_size=3, unique=True)
RANGES = st.lists(st.tuples(CHOSEN, MINUTES, MINUTES), min_size=1, max_size=4)


class Range:
    """A range as a set of first days, and as a span that may end on the next day."""

    def __init__(self, days: list[int], start: int, end: int) -> None:
        self.days = days
        self.start, self.end = timedelta(minutes=start), timedelta(minutes=end if end > start else end + 1440)
        names = [DAYS[each] for each in days]
        times = f"{start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02}"
        self.text = f"{','.join(names)} {times}" if start != end else ",".join(names)
        if start == end:
            self.start, self.end = timedelta(), timedelta(days=1)

    def has(self, local: datetime) -> bool:
        """Return whether a local time is in the span that begins on its day, or on the day before."""
        for day in (local.date(), local.date() - timedelta(1)):
            midnight = datetime.combine(day, time())
            if day.weekday() in self.days and midnight + self.start <= local < midnight + self.end:
                return True
        return False


def overlap(ranges: list[Range]) -> bool:
    """Return whether two ranges have a half hour of the week in common."""
    halves = [datetime.combine(MONDAY, time()) + timedelta(minutes=30 * i) for i in range(48 * 8)]
    return any(sum(each.has(half) for each in ranges) > 1 for half in halves)


@given(RANGES, st.sampled_from(ZONES), st.lists(st.integers(0, 380 * 86_400_000_000), min_size=1, max_size=50))
def test_a_schedule_agrees_with_a_calendar(drawn: list[Any], zone: str, offsets: list[int]) -> None:
    """Ranges that overlap are rejected, and all others hold at each microsecond of a year in every time zone."""
    ranges = list({each.text: each for each in (Range(*one) for one in drawn)}.values())
    if overlap(ranges):
        expect_error("overlap", schedule_of, *(each.text for each in ranges), zone=ZoneInfo(zone))
        return
    schedule = schedule_of(*(each.text for each in ranges), zone=ZoneInfo(zone))
    begin = us(datetime.combine(MONDAY, time(), UTC))
    edges = [
        datetime.combine(MONDAY + timedelta(i // 48), time(), UTC) + timedelta(minutes=i % 48 * 30) for i in (0, 47, 90)
    ]
    for moment in (*(begin + offset for offset in offsets), *(us(edge) + more for edge in edges for more in (-1, 0))):
        local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)).astimezone(ZoneInfo(zone))
        found = [each for each in ranges if each.has(local.replace(tzinfo=None))]
        assert schedule.at(moment) == next((each.text for each in found), None)


RESERVE = {"critical": "20%", "normal": "10%"}


def limiter(settings: Any = None, store: Any = None, **options: Any) -> Limiter:
    rule = {"name": "api", "limits": "10/minute", "reserve": RESERVE, **options}
    loaded = load_settings({"rules": [rule], **(settings or {})})
    return Limiter.from_settings(loaded, ManualClock(1_000_000.0), store)


def allowed(limits: Limiter, priority: object = None, times: int = 20, **features: Any) -> int:
    hits = [limits.hit({"ip": "192.0.2.7", "priority": priority, **features}) for _ in range(times)]
    return sum(map(bool, hits))


@each(
    ("value", "name"),
    [
        ("critical", "critical"),
        (" Background\t", "background"),
        (None, "normal"),
        ("", "normal"),
        ("urgent", "normal"),
        (INVALID, "normal"),
        (1, "normal"),
        (["critical"], "normal"),
    ],
)
def test_a_request_without_a_class_of_the_list_is_of_the_middle_one(value: object, name: str) -> None:
    """A client cannot name a class that does not exist."""
    assert DEFAULT_PRIORITIES.class_of({"priority": value}) == name


@each(
    ("order", "middle"),
    [(["all"], "all"), (["high", "low"], "high"), (["a", "b", "c"], "b"), (["a", "b", "c", "d"], "b")],
)
def test_the_middle_class_is_the_higher_one_of_two(order: list[str], middle: str) -> None:
    """The order has from one to ten classes."""
    assert parse_priorities({"order": order}).class_of({}) == middle


@each(
    ("options", "counts"),
    [
        ({}, [7, 1, 2]),
        ({"reserve": {"normal": "30%"}}, [7, 3, 0]),
        ({"reserve": {"background": "30%"}}, [10, 0, 0]),
        ({"limits": "3/minute"}, [3, 0, 0]),
        ({"limits": "1/minute"}, [1, 0, 0]),
        ({"limits": "10/minute burst 20", "algorithm": "gcra"}, [14, 2, 4]),
        ({"cost": 2}, [3, 1, 1]),
        ({"per": {"ip": {"192.0.2.7": "20/minute"}}}, [14, 2, 4]),
        ({"per_key": {"192.0.2.7": "20/minute"}}, [14, 2, 4]),
        ({"schedule": {"mon-sun 00:00-24:00": "20/minute"}}, [14, 2, 4]),
    ],
)
def test_the_share_is_of_each_limit(options: dict[str, Any], counts: list[int]) -> None:
    """It is rounded down, so each class has at least one."""
    limits = limiter(**options)
    assert [allowed(limits, name) for name in ("background", "normal", "critical")] == counts


def test_an_override_and_a_function_have_the_share() -> None:
    """Limits that are known only now keep it as well."""
    rule = Rule(name="api", limits=lambda ip: "20/minute", key=["ip"], reserve=RESERVE)
    limits = Limiter([rule], clock=ManualClock(1_000_000.0))
    assert [allowed(limits, name) for name in ("background", "critical")] == [14, 6]
    limits.clients.override("api", {"ip": "192.0.2.8"}, "30/minute", 3600)
    assert [allowed(limits, name, 40, ip="192.0.2.8") for name in ("background", "critical")] == [21, 9]


def test_a_wait_is_until_the_class_may_pass() -> None:
    """The wait of a class is longer than that of one above it, and is exact."""
    limits = limiter(algorithm="sliding-window-log")
    clock: Any = limits.clocks.own
    for _ in range(10):
        limits.hit({"ip": "192.0.2.7", "priority": "critical"})
        clock.advance(1)
    waits = [limits.peek({"ip": "192.0.2.7", "priority": name}).retry_after for name in ("critical", "background")]
    assert waits == [50.0, 53.0]
    clock.advance(53 - 1e-6)
    assert not limits.hit({"ip": "192.0.2.7", "priority": "background"})
    clock.advance(1e-6)
    assert limits.hit({"ip": "192.0.2.7", "priority": "background"})


def test_a_cost_function_and_an_estimate_are_of_the_class() -> None:
    """An estimate is at most what the class can pass at once. A cost above that never fits."""
    limits = limiter(cost="json:n")
    verdict = limits.hit({"ip": "192.0.2.7", "json:n": 50, "priority": "background"})
    assert (verdict.allowed, verdict.decisions[0].remaining) == (True, 0)
    rule = Rule(name="api", limits="10/minute", cost=lambda features: features["n"], reserve=RESERVE)
    verdict = Limiter([rule]).hit({"ip": "192.0.2.7", "n": 8, "priority": "background"})
    assert (verdict.allowed, verdict.retry_after) == (False, None)


@each("last", ["background", "critical"])
def test_an_outage_continues_from_the_shared_count(last: str) -> None:
    """A process without its store knows how much all classes have taken."""
    store, settings = SharedStore(), {"fleet_size": 1, "rejection_cache": 0}
    limits = limiter(settings, store, algorithm="sliding-window-log")
    assert [allowed(limits, name, 1) for name in ("critical", "critical", last)] == [1, 1, 1]
    store.down = True
    assert [allowed(limits, name) for name in ("background", "normal", "critical")] == [4, 1, 2]


def test_a_cached_rejection_is_of_its_class() -> None:
    """A process that knows that background requests are rejected asks the store for critical ones."""
    limits = Limiter([Rule(name="api", limits="10/hour", reserve=RESERVE)], SharedStore())
    assert [allowed(limits, name) for name in ("background", "critical", "background")] == [7, 3, 0]


@each(
    ("table", "message"),
    [
        ({"order": []}, r"priorities\.order: expected from 1 to 10 different classes"),
        ({"order": ["a", "a"]}, r"priorities\.order: expected from 1 to 10 different classes"),
        ({"order": ["A"]}, r"priorities\.order\[0\]: expected a word in lower case"),
        ({"order": "critical"}, r"priorities\.order: expected a list of text"),
        ({"header": "x y"}, r"priorities\.header: expected a feature"),
        ({"oder": ["a"]}, r"priorities\.oder: unknown option. Did you mean 'order'\?"),
    ],
)
def test_a_table_that_cannot_work_is_an_error(table: Any, message: str) -> None:
    """The message has the place."""
    expect_error(message, load_settings, {"priorities": table})
    expect_error("cost: the cost 8 is above 7, the smallest part of the limit 10/minute", lambda: limiter(cost=8))


def test_an_unknown_class_is_an_error_with_its_line(tmp_path: Path) -> None:
    """So it is in a rule of a decorator that the file overrides, and in a rule of Python."""
    file = tmp_path / "ratelimit.toml"
    file.write_text('[[rules]]\nname = "api"\nlimits = "9/s"\nreserve = { urgent = "5%" }\n')
    with pytest.raises(ConfigError, match=r'ratelimit\.toml:4: rules\[0\] "api": reserve\.urgent: unknown class'):
        load_settings(file)
    expect_error(
        r"rules\[0\] \"v\": reserve\.urgent",
        load_settings,
        {"rules": [{"overrides": "v", "reserve": {"urgent": "5%"}}]},
    )
    expect_error("rule 'api': reserve.urgent", Limiter, [Rule(name="api", limits="9/s", reserve={"urgent": "5%"})])


def test_a_reload_uses_the_new_order(tmp_path: Path) -> None:
    """The limits of the rule are built anew, and the count stays."""
    file = tmp_path / "ratelimit.toml"
    text = '[priorities]\norder = {}\n[[rules]]\nname = "api"\nlimits = "10/minute"\nreserve = {{ a = "20%" }}\n'
    file.write_text(text.format('["a", "b"]'))
    limits = Limiter.from_settings(file, ManualClock(1_000_000.0))
    assert allowed(limits, "b") == 8
    file.write_text(text.format('["b", "a"]'))
    limits.reload()
    assert allowed(limits, "b") == 2
