"""Draws a forecast with matplotlib: the recorded requests, the back-test, and the next day or week."""

from pathlib import Path
from typing import Any, Final

from ..plot import Theme, edges_of, picture, style_times
from .model import HOUR, Forecast, HourlyCounts

_SHOWN: Final = 3
"""Periods of the record: the back-test, and two before."""


def draw_forecast(record: HourlyCounts, result: Forecast, path: Path, theme: Theme) -> None:
    """Write a PNG or an SVG, by the name of the file."""
    period = result.period
    shown = record.counts[-_SHOWN * period :]
    edges = edges_of(record.end - len(shown) * HOUR, HOUR, len(shown) + period)
    last, ahead = edges[len(shown) - period : len(shown) + 1], edges[len(shown) :]
    with picture(path, 4.6, theme) as figure:
        axes = figure.subplots()
        axes.stairs(shown, edges[: len(shown) + 1], fill=True, color=theme.allowed, label="requests")
        for name, values in result.tested.items():
            colour, width = (theme.rejected, 1.6) if name == result.model else (theme.ink, 0.9)
            label = f"{name} (error {result.errors[name]:.1%})"
            axes.stairs(values, last, baseline=None, color=colour, linewidth=width, label=label)
        style: dict[str, Any] = {"color": theme.rejected, "linewidth": 1.6, "linestyle": "--"}
        axes.stairs(result.counts, ahead, baseline=None, label="forecast", **style)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(0, max(*shown, *result.counts, *(max(each) for each in result.tested.values())) * 1.06)
        style_times(axes, "requests per hour", record.period, "Requests")
