"""``ratelimit-mw forecast``: forecast the requests of a log, and print limits that fit below the predicted peak."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from ...limiter.observers.events import Outcome
from ...limiter.observers.traffic import event_of
from ..log_files import LOG, check_paths, format_text
from ..output import FILE, command, json_option, note, print_json, print_table, print_text
from ..replay.logs import field_option
from ..replay.picture import plot_option, theme_option
from ..toml import toml
from .background import background_settings
from .series import HOUR, HourlyCounts, count_access_logs, count_traffic_log

if TYPE_CHECKING:
    from .model import Forecast

_DAY: Final = 24  # hours


def _check_log(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Check the paths of access logs. A traffic log has a URL."""
    if "://" in texts[0]:
        return texts
    return check_paths(ctx, param, tuple(str(LOG.convert(text, param, ctx)) for text in texts))


@command(
    "ratelimit-mw forecast access.log access.log.1.gz access.log.2.gz",
    "ratelimit-mw forecast access.log --rule api --settings ratelimit.toml --plot forecast.svg",
    "ratelimit-mw forecast sqlite:///traffic.db --rule api",
    "ratelimit-mw forecast sqlite:///traffic.db url_shorten --json",
)
@click.argument("log", metavar="LOG...", nargs=-1, required=True, callback=_check_log)
@click.option("--rule", help="Count only the requests that this rule applies to.")
@click.option("--settings", type=FILE, help="The settings file of --rule, for access logs.")
@field_option
@plot_option("Draw the requests, the back-test and the forecast, as .png or .svg.")
@theme_option
@json_option
def forecast(
    log: tuple[str, ...],
    rule: str | None,
    settings: Path | None,
    fields: dict[str, str],
    plot: Path | None,
    theme: str,
    as_json: bool,
) -> None:
    """Forecast the requests of the next week, and print limits for background requests that fit below its peak.

    LOG is one or several access logs, as for replay, or the URL of a traffic log, with an event or a rule. The forecast
    is by the hour. If the log covers less than three weeks, the forecast is for the next day only.

    To measure its error, each model forecasts the last week of the log from the earlier data. One model is STL with
    exponential smoothing, and the other repeats the last week. The model with the lower error makes the forecast.
    """
    from .model import forecast as forecast_of  # raises MissingExtraError without statsmodels

    if plot is not None:
        from ..replay.plot import THEMES  # raises MissingExtraError without matplotlib
        from .plot import draw_forecast
    record = _read(log, rule, settings, fields)
    result = forecast_of(record.counts)
    summary = _summary(record, result)
    if as_json:
        print_json(summary)
    else:
        _print(record, summary)
    if plot is not None:
        draw_forecast(record, result, plot, THEMES[theme])
        note(f"picture written to {plot}")


def _read(log: tuple[str, ...], rule: str | None, settings: Path | None, fields: dict[str, str]) -> HourlyCounts:
    if "://" in log[0]:
        events = [*log[1:], *(event_of(rule, outcome) for outcome in get_args(Outcome) if rule)]
        if len(log) + bool(rule) != 2 or settings is not None:
            raise click.UsageError("give the URL of a traffic log, and one event or --rule")
        return count_traffic_log(log[0], events)
    if (rule is None) != (settings is None):
        raise click.UsageError("--rule and --settings need each other")
    return count_access_logs(log, rule, settings, fields)


def _summary(record: HourlyCounts, result: "Forecast") -> dict[str, Any]:
    """Return the forecast for programs."""
    options = background_settings(record.end, result.counts, result.margin)
    peak = max(range(result.period), key=lambda hour: result.counts[hour])
    return {
        "hours": len(record.counts),
        "formats": record.formats,
        "first": _moment(record.start).isoformat(),
        "last": _moment(record.end).isoformat(),
        "requests": sum(record.counts),
        "period": "week" if result.period > _DAY else "day",
        "errors": result.errors,
        "model": result.model,
        "forecast": {"start": record.end, "step": HOUR, "counts": [round(count, 1) for count in result.counts]},
        "peak": {"hour": _moment(record.end + peak * HOUR).isoformat(), "requests": round(result.counts[peak])},
        "margin": round(result.margin),
        "settings": options,
    }


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _print(record: HourlyCounts, summary: dict[str, Any]) -> None:
    period, peak = summary["period"], summary["peak"]
    print_text(f"{record.period}: {summary['requests']:,} requests in {summary['hours']:,} hours")
    if record.formats:
        print_text(format_text(record.formats))
    click.echo()
    rows = [{"model": name, "error": error} for name, error in summary["errors"].items()]
    print_table(f"Back-test: the last {period}, forecast from the time before", rows)
    hour = datetime.fromisoformat(peak["hour"])
    print_text(f"Predicted peak: {peak['requests']:,} requests per hour on {hour:%A, %Y-%m-%d %H:%M} UTC")
    print_text(f"Nine of ten hours exceeded their forecast by at most {summary['margin']:,} requests.")
    click.echo()
    print_text("Limits that keep all requests below this peak, for your background requests together", "bold")
    print_text("[[rules]]")
    options = {"name": "background", "match": {"path": "/background/**"}, "key": [], **summary["settings"]}
    for name, value in options.items():
        print_text(f"{name} = {toml(value)}")
