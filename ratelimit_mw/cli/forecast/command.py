"""``ratelimit-mw forecast``: forecast the requests of a log, and print a limit above the predicted peak."""

from datetime import datetime
from pathlib import Path
from typing import Any, Final, get_args

import click

from ...limiter.observers.outcomes import Outcome
from ...limiter.observers.traffic import event_of
from ...operations import Answer, Line, Table
from ..output import command, json_flag
from ..plot import ALLOWED, INK, REJECTED, edges_of, picture, picture_option, style_times
from ..toml import toml
from .model import DAY, HOUR, Forecast, HourlyCounts, count_hours, limit_above, moment
from .model import forecast as forecast_of

_SHOWN: Final = 3
"""The periods of the log in a picture: the back-test, and two before."""


@command(
    "ratelimit-mw forecast sqlite:///traffic.db --rule api",
    "ratelimit-mw forecast sqlite:///traffic.db --rule api --plot forecast.svg",
    "ratelimit-mw forecast sqlite:///traffic.db url_shorten --json",
)
@click.argument("url")
@click.argument("event", required=False)
@click.option("--rule", help="Count the requests that this rule applied to.")
@picture_option("--plot", "Draw the requests, the back-test and the forecast, as .png or .svg.")
@json_flag
def forecast(url: str, event: str | None, rule: str | None, plot: Path | None) -> Answer:
    """Forecast the requests of the next week, and print the lowest limit for all requests that leaves them room.

    URL is the setting `traffic_log` of your application, such as sqlite:///traffic.db. The forecast is by the hour. If
    the log covers less than three weeks, the forecast is for the next day only.

    To measure its error, each model forecasts the last week of the log from the earlier data. One model is STL with
    exponential smoothing, and the other repeats the last week. The model with the lower error makes the forecast.
    """
    if (event is None) == (rule is None):
        raise click.UsageError("name an EVENT, or a rule with --rule")
    events = [event] if event is not None else [event_of(str(rule), outcome) for outcome in get_args(Outcome)]
    record = count_hours(url, events)
    result = forecast_of(record.counts)
    summary = _summary(record, result)
    if plot is not None:
        _draw(record, result, plot)
    return Answer(summary, _show(record, summary), [] if plot is None else [f"picture written to {plot}"])


def _summary(record: HourlyCounts, result: Forecast) -> dict[str, Any]:
    """Return the forecast for programs."""
    peak = max(range(result.period), key=lambda hour: result.counts[hour])
    return {
        "hours": len(record.counts),
        "first": moment(record.start).isoformat(),
        "last": moment(record.end).isoformat(),
        "requests": sum(record.counts),
        "period": "week" if result.period > DAY else "day",
        "errors": result.errors,
        "model": result.model,
        "forecast": {"start": record.end, "step": HOUR, "counts": [round(count, 1) for count in result.counts]},
        "peak": {"hour": moment(record.end + peak * HOUR).isoformat(), "requests": round(result.counts[peak])},
        "margin": round(result.margin),
        "limits": [limit_above(result.counts, result.margin)],
    }


def _show(record: HourlyCounts, summary: dict[str, Any]) -> list[Table | Line | str]:
    period, peak = summary["period"], summary["peak"]
    rows = [{"model": name, "error": error} for name, error in summary["errors"].items()]
    hour = datetime.fromisoformat(peak["hour"])
    options = {"name": "everyone", "key": [], "limits": summary["limits"]}
    return [
        f"{record.period}: {summary['requests']:,} requests in {summary['hours']:,} hours",
        "",
        Table(f"Back-test: the last {period}, forecast from the time before", rows),
        f"Predicted peak: {peak['requests']:,} requests per hour on {hour:%A, %Y-%m-%d %H:%M} UTC",
        f"Nine of ten hours exceeded their forecast by at most {summary['margin']:,} requests.",
        "",
        Line("The lowest limit for all requests together that leaves room for this peak", "bold"),
        "[[rules]]",
        *(f"{name} = {toml(value)}" for name, value in options.items()),
    ]


def _draw(record: HourlyCounts, result: Forecast, path: Path) -> None:
    """Write a PNG or an SVG, by the name of the file."""
    period = result.period
    shown = record.counts[-_SHOWN * period :]
    edges = edges_of(record.end - len(shown) * HOUR, HOUR, len(shown) + period)
    last, ahead = edges[len(shown) - period : len(shown) + 1], edges[len(shown) :]
    with picture(path, 4.6) as figure:
        axes = figure.subplots()
        axes.stairs(shown, edges[: len(shown) + 1], fill=True, color=ALLOWED, label="requests")
        for name, values in result.tested.items():
            colour, width = (REJECTED, 1.6) if name == result.model else (INK, 0.9)
            label = f"{name} (error {result.errors[name]:.1%})"
            axes.stairs(values, last, baseline=None, color=colour, linewidth=width, label=label)
        style: dict[str, Any] = {"color": REJECTED, "linewidth": 1.6, "linestyle": "--"}
        axes.stairs(result.counts, ahead, baseline=None, label="forecast", **style)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(0, max(*shown, *result.counts, *(max(each) for each in result.tested.values())) * 1.06)
        style_times(axes, "requests per hour", record.period, "Requests")
