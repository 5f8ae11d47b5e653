"""Retention: the syntax and the rules of Graphite, and the buckets that a range has at the boundaries of each one."""

from itertools import pairwise

from tables import each, expect_error

from ratelimit_mw.traffic.retention import DAY, DEFAULT, Resolution, Retention

NOW = 1_767_268_820
FAR = 100 * 365 * DAY


@each(
    ("text", "resolution"),
    [
        ("10s:10s", (10, 10)),
        ("10s:10h", (10, 36_000)),
        ("1m:1d", (60, DAY)),
        ("1m:1w", (60, 7 * DAY)),
        ("1h:1y", (3600, 365 * DAY)),
        (" 7s:20s ", (7, 14)),
    ],
)
def test_a_resolution_is_read_as_in_graphite(text: str, resolution: tuple[int, int]) -> None:
    """Each time has a unit of one letter, and is rounded down to whole buckets."""
    assert Retention(text).resolutions == (Resolution(*resolution),)


@each(
    ("text", "problem"),
    [
        *(
            (text, "cannot parse retention")
            for text in ("", "10", "10:", "10s:10", "10x:10s", "10:10$", "1M:1d", "1m-1d", "1m:1d,")
        ),
        *((text, "must have from 1 to") for text in ("0s:10s", "10s:0s", "1m:10s", "1s:10y")),
        # The rules by which whisper checks its archives.
        ("1m:1d,60s:2d", "the step of '1m:2d' must be a multiple of that of '1m:1d'"),
        ("60s:1h,90s:1d", "the step of '90s:1d' must be a multiple of that of '1m:1h'"),
        ("1m:1d,1h:1d", "the step of '1h:1d' must be a multiple of that of '1m:1d', and be kept longer"),
        ("1m:1d,1h:12h", "and be kept longer"),
        ("1m:30m,1h:1d", "'1m:30m' must be kept for such a step"),
    ],
)
def test_a_text_that_is_no_retention_is_an_error(text: str, problem: str) -> None:
    expect_error(problem, Retention, text)


def test_resolutions_may_be_in_any_order_and_have_one_text() -> None:
    """The finest comes first, and the text has the largest units that are exact."""
    assert str(Retention("604800s:520w, 1h:90d,5m:7d,60s:1d")) == "1m:1d,5m:1w,1h:90d,1w:520w"
    assert str(Retention(DEFAULT)) == "1m:1d,5m:1w,1h:90d,1d:2y,1w:521w"


@each(
    ("back", "steps"),
    [
        *((back, [60, 300]) for back in (0, 1, 59, 60, DAY - 1, DAY)),
        *((back, [300]) for back in (DAY + 1, 7 * DAY, FAR)),
    ],
)
def test_a_range_is_covered_by_the_resolutions_that_keep_its_start(back: int, steps: list[int]) -> None:
    """The boundary belongs to the finer resolution, as in whisper, and the longest covers everything."""
    assert [each.step for each in Retention("1m:1d,5m:7d").covering(NOW - back, NOW)] == steps


@each(
    ("start", "end", "run"),
    [
        (NOW, NOW, range(1_767_268_800, 1_767_268_860, 60)),  # no length: one bucket
        (1_767_268_800, 1_767_268_800, range(1_767_268_800, 1_767_268_860, 60)),
        (1_767_268_800, 1_767_268_860, range(1_767_268_800, 1_767_268_860, 60)),  # whole buckets are not widened
        (1_767_268_799, 1_767_268_861, range(1_767_268_740, 1_767_268_920, 60)),  # one second more is
    ],
)
def test_a_range_is_widened_to_the_buckets_that_it_touches(start: int, end: int, run: range) -> None:
    """The first and the last bucket are whole."""
    assert Retention("1m:1d,5m:7d").curve(start, end, NOW, 300) == (60, run)


def test_a_range_that_starts_before_the_log_starts_with_its_oldest_bucket() -> None:
    """Those before it would look like a time without requests. A range before the log has the bucket of its end."""
    own, run = Retention("1m:1d,5m:7d").curve(0, NOW, NOW, 3000)
    assert (own, run.step, run.start) == (300, 300, (NOW - 7 * DAY) // 300 * 300)
    assert Retention("1m:1d,5m:7d").curve(0, 1, NOW, 300) == (300, range(0, 300, 300))


@each(
    ("seconds", "points", "step"),
    [
        (3600, 300, 60),
        (3600, 61, 60),
        (3600, 60, 120),  # 61 buckets: the range starts within one
        (DAY, 300, 300),
        (7 * DAY, 300, 3600),
        (7 * DAY, 10, DAY),
        (30 * DAY, 300, 3 * 3600),
        (90 * DAY, 10, 10 * DAY),
        (3650 * DAY, 300, 14 * DAY),
        (DAY, 2, DAY),
    ],
)
def test_a_curve_has_at_most_its_points(seconds: int, points: int, step: int) -> None:
    """A longer step divides an hour or a day, or has whole days. No bucket of it is missing in the log."""
    own, run = Retention(DEFAULT).curve(NOW - seconds, NOW, NOW, points)
    assert run.step == step
    assert run.step % own == 0
    assert len(run) <= points
    assert run.start <= NOW - seconds + 14 * DAY
    assert run.stop >= NOW
    (kept,) = (each.kept for each in Retention(DEFAULT).resolutions if each.step == own)
    assert run.start + own > NOW - kept


@each(("seconds", "points", "own"), [(DAY, 300, 300), (3600, 60, 60), (7 * DAY, 10, DAY)])
def test_a_curve_reads_the_coarsest_buckets_of_its_steps(seconds: int, points: int, own: int) -> None:
    """They have the same counts in fewer rows."""
    assert Retention(DEFAULT).curve(NOW - seconds, NOW, NOW, points)[0] == own


def test_steps_that_divide_no_hour_have_any_multiple() -> None:
    """Seven seconds have no multiple that divides an hour."""
    assert Retention("7s:1d").curve(NOW - 3600, NOW, NOW, 100)[1].step == 42


def test_a_range_has_the_fewest_buckets() -> None:
    """Coarse buckets are in the middle and fine ones on both sides, without a gap."""
    start, end = NOW - DAY // 2 - 400, NOW
    runs = Retention("1m:1d,5m:7d,1h:90d").runs(start, end, NOW)
    assert [run.step for run in runs] == [60, 300, 3600, 60]
    assert all(left.stop == right.start for left, right in pairwise(runs))
    assert (runs[0].start, runs[-1].stop) == (start // 60 * 60, -(-end // 60) * 60)
    assert sum(len(run) for run in runs) < 40
