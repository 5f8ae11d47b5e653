"""Draws a forecast with matplotlib: the recorded requests, the back-test, and the next day or week."""

from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from ..replay.plot import Theme, save, style_times
from .model import Forecast, Values
from .series import HOUR, HourlyCounts

_SHOWN: Final = 3
"""Periods of the record: the back-test, and two before."""
_DAY: Final = 86_400


def draw_forecast(record: HourlyCounts, result: Forecast, path: Path, theme: Theme) -> None:
    """Write a PNG or an SVG, by the name of the file."""
    figure = Figure(figsize=(11, 4.6), dpi=150, layout="constrained", facecolor=theme.background)
    axes, period = figure.subplots(), result.period
    shown = record.counts[-_SHOWN * period :]
    start, tested = record.end - len(shown) * HOUR, record.end - period * HOUR
    axes.stairs(shown, _edges(start, shown), fill=True, color=theme.allowed, label="requests")
    for name, values in result.tested.items():
        is_best = name == result.model
        colour, width = (theme.rejected, 1.6) if is_best else (theme.ink, 0.9)
        label = f"{name} (error {result.errors[name]:.1%})"
        axes.stairs(values, _edges(tested, values), baseline=None, color=colour, linewidth=width, label=label)
    axes.stairs(result.counts, _edges(record.end, result.counts), baseline=None, color=theme.rejected, linewidth=1.6,
                linestyle="--", label="forecast")  # fmt: skip
    edges = _edges(start, [*shown, *result.counts])
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, max(*shown, *result.counts, *(max(each) for each in result.tested.values())) * 1.06)
    style_times(axes, "requests per hour", record.period, "Requests", theme)
    save(figure, path)


def _edges(start: int, counts: Values) -> list[float]:
    """Return the edges of hours in days since 1970, as matplotlib counts."""
    return [(start + i * HOUR) / _DAY for i in range(len(counts) + 1)]
