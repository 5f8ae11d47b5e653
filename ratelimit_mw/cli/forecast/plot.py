"""Draws a forecast with matplotlib: the recorded requests, the back-test, and the next day or week."""

from pathlib import Path
from typing import Final

from ..replay.plot import Theme, edges_of, new_figure, save, style_times
from .model import HOUR, Forecast, HourlyCounts

_SHOWN: Final = 3
"""Periods of the record: the back-test, and two before."""


def draw_forecast(record: HourlyCounts, result: Forecast, path: Path, theme: Theme) -> None:
    """Write a PNG or an SVG, by the name of the file."""
    figure = new_figure(4.6, theme)
    axes, period = figure.subplots(), result.period
    shown = record.counts[-_SHOWN * period :]
    start, tested = record.end - len(shown) * HOUR, record.end - period * HOUR
    axes.stairs(shown, edges_of(start, HOUR, shown), fill=True, color=theme.allowed, label="requests")
    for name, values in result.tested.items():
        is_best = name == result.model
        colour, width = (theme.rejected, 1.6) if is_best else (theme.ink, 0.9)
        label = f"{name} (error {result.errors[name]:.1%})"
        edges = edges_of(tested, HOUR, values)
        axes.stairs(values, edges, baseline=None, color=colour, linewidth=width, label=label)
    edges = edges_of(record.end, HOUR, result.counts)
    axes.stairs(result.counts, edges, baseline=None, color=theme.rejected, linewidth=1.6, linestyle="--",
                label="forecast")  # fmt: skip
    edges = edges_of(start, HOUR, [*shown, *result.counts])
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, max(*shown, *result.counts, *(max(each) for each in result.tested.values())) * 1.06)
    style_times(axes, "requests per hour", record.period, "Requests", theme)
    save(figure, path)
