"""``ratelimit-mw forecast``: forecast the requests of a traffic log, and print a limit above the predicted peak.

STL (seasonal and trend decomposition by local regression) takes the seasonal part out of the logarithms of the counts.
A damped trend continues the rest, and the seasonal part of the last period is added again. Single peaks have a low
weight. The seasonal naive forecast, which is the baseline, repeats the last period.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from math import ceil
from operator import sub
from typing import Final, NamedTuple, get_args

import click

from ..clock import SECOND
from ..errors import MissingExtraError
from ..limiter.observers.events import Outcome
from ..limiter.observers.traffic import event_of
from ..operations import Answer, Line, Table
from ..stores.url import redacted_url
from ..testmode import wall_clock
from .operate import open_log
from .output import Failure, command, json_flag, toml

HOUR: Final = 3600
_HOURS_PER_DAY: Final = 24
_HOURS_PER_WEEK: Final = 7 * _HOURS_PER_DAY
_PERIODS: Final = 3
"""A series has at least three periods: two to forecast from, and one to compare with."""
_MAX_HOURS: Final = 26 * _HOURS_PER_WEEK
"""The hours of a series at most: half a year."""
_PER_MINUTE_FROM: Final = 600


@command(
    "ratelimit-mw forecast sqlite:///traffic.db --rule api",
    "ratelimit-mw forecast sqlite:///traffic.db url_shorten --json",
)
@click.argument("url")
@click.argument("event", required=False)
@click.option("--rule", help="Count the requests that this rule applied to.")
@json_flag
def forecast(url: str, event: str | None, rule: str | None) -> Answer:
    """Forecast the requests of the next week, and print a limit.

    It is the lowest limit for all requests that leaves them room. URL is the setting `traffic_log` of your application,
    such as sqlite:///traffic.db. The forecast is by the hour. If the log covers less than three weeks, the forecast is
    for the next day only.

    To measure its error, each model forecasts the last week of the log from the earlier data. One model is STL with
    exponential smoothing, and the other repeats the last week. The model with the lower error makes the forecast.
    """
    if (event is None) == (rule is None):
        raise click.UsageError("name an EVENT, or a rule with --rule")
    events = [event] if event is not None else [event_of(str(rule), outcome) for outcome in get_args(Outcome)]
    start, counts = count_hours(url, events)
    return _answer(start, counts, forecast_counts(counts))


def _answer(start: int, counts: Sequence[int], result: "Forecast") -> Answer:
    end, period = start + HOUR * len(counts), "week" if result.period > _HOURS_PER_DAY else "day"
    peak = max(range(result.period), key=lambda hour: result.counts[hour])
    highest, margin = round(result.counts[peak]), round(result.margin)
    limits = [limit_above(result.counts, result.margin)]
    first, last, hour = (datetime.fromtimestamp(each, UTC) for each in (start, end, end + peak * HOUR))
    json = {
        "hours": len(counts),
        "first": first.isoformat(),
        "last": last.isoformat(),
        "requests": sum(counts),
        "period": period,
        "errors": result.errors,
        "model": result.model,
        "forecast": {"start": end, "step": HOUR, "counts": [round(count, 1) for count in result.counts]},
        "peak": {"hour": hour.isoformat(), "requests": highest},
        "margin": margin,
        "limits": limits,
    }
    shown: list[Table | Line | str] = [
        f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC: {sum(counts):,} requests in {len(counts):,} hours",
        "",
        Table(
            f"Back-test: the last {period}, forecast from the time before",
            [{"model": name, "error": error} for name, error in result.errors.items()],
        ),
        f"Predicted peak: {highest:,} requests per hour on {hour:%A, %Y-%m-%d %H:%M} UTC",
        f"Nine of ten hours exceeded their forecast by at most {margin:,} requests.",
        "",
        Line("The lowest limit for all requests together that leaves room for this peak", "bold"),
        "[[rules]]",
        'name = "everyone"',
        "key = []",
        f"limits = {toml(limits)}",
    ]
    return Answer(json, shown)


def count_hours(url: str, events: Sequence[str]) -> tuple[int, list[int]]:
    """Return the start of the first hour of some events in a traffic log, and the counts of all hours from then on.

    The first and the last hour with a request are left out: they may be cut.
    """
    end = wall_clock() // SECOND // HOUR * HOUR
    with closing(open_log(url)) as log:
        kept = [each.kept // HOUR for each in log.retention.resolutions if HOUR % each.step == 0]
        hours = min(max(kept, default=0), _MAX_HOURS)
        if hours < 2:
            raise Failure(f"{redacted_url(url)}: the log keeps no hours. Give it a retention such as 1h:90d")
        start = end - (hours - 1) * HOUR  # within the retention, also later in this hour
        curves = list(log.curves(events, start, end, points=_MAX_HOURS + 2).values())
    steps = [sum(step) for step in zip(*(curve.counts for curve in curves), strict=True)]
    size = HOUR // curves[0].step
    counts = [sum(steps[i : i + size]) for i in range(0, len(steps), size)]
    found = [i for i, number in enumerate(counts) if number]
    if not found:
        message = f"no record of {', '.join(events)} by the hour in the last {hours // _HOURS_PER_DAY} days"
        raise Failure(f"{redacted_url(url)}: {message}")
    first, last = found[0] + 1, found[-1]
    return curves[0].start + first * HOUR, counts[first:last]


class Forecast(NamedTuple):
    """The next period of a series, and how well the same models forecast the last period from those before."""

    period: int
    """Hours: a day or a week."""
    model: str
    """The model with the lower error. It has made the forecast."""
    counts: list[float]
    errors: dict[str, float]
    """The sum of all absolute errors as a share of all requests, by model."""
    margin: float
    """The requests by which nine of ten hours exceeded their forecast at most."""


def forecast_counts(counts: Sequence[float]) -> Forecast:
    """Forecast the next week of hourly counts, or the next day of counts of less than three weeks."""
    period = next((each for each in (_HOURS_PER_WEEK, _HOURS_PER_DAY) if len(counts) >= _PERIODS * each), None)
    if period is None:
        raise Failure(f"a forecast needs three whole days, or three weeks for a week; got {len(counts)} hours")
    if not sum(counts[-period:]):
        raise Failure(f"no request in the last {period} whole hours. A forecast needs requests in each day or week")
    before, truth = counts[:-period], counts[-period:]
    tested = {name: model(before, period) for name, model in _MODELS.items()}
    errors = {name: sum(map(abs, map(sub, truth, values))) / sum(truth) for name, values in tested.items()}
    best = min(errors, key=lambda name: errors[name])
    excess = sorted(map(sub, truth, tested[best]))
    return Forecast(period, best, _MODELS[best](counts, period), errors, max(0.0, excess[period * 9 // 10]))


def _seasonal(counts: Sequence[float], period: int) -> list[float]:
    try:
        import numpy
        from statsmodels.tsa.api import STLForecast
        from statsmodels.tsa.exponential_smoothing.ets import ETSModel
    except ImportError:
        raise MissingExtraError("forecast", "forecast") from None
    options = {"error": "add", "trend": "add", "damped_trend": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a series that does not vary has no likelihood, and the back-test shows it
        model = STLForecast(numpy.log1p(counts), ETSModel, model_kwargs=options, period=period, robust=True)
        values = numpy.expm1(model.fit(fit_kwargs={"disp": False}).forecast(period))
    return [max(0.0, float(value)) for value in numpy.nan_to_num(values, posinf=0.0)]


def _naive(counts: Sequence[float], period: int) -> list[float]:
    return [float(value) for value in counts[-period:]]


_MODELS: Final[dict[str, Callable[[Sequence[float], int], list[float]]]] = {
    "STL with exponential smoothing": _seasonal,
    "seasonal naive": _naive,
}


def limit_above(counts: Sequence[float], margin: float) -> str:
    """Return the lowest limit that leaves room for the peak of a forecast, which may be too low by the margin."""
    amount = max(1, ceil(max(counts) + margin))
    return f"{ceil(amount / 60)}/minute" if amount >= _PER_MINUTE_FROM else f"{amount}/hour"
