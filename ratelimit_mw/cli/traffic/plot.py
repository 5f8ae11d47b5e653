"""Draws a curve of a traffic log with matplotlib."""

from pathlib import Path

from matplotlib.figure import Figure

from ...limiter.times import span_text
from ...traffic import Curve
from ..output import printable
from ..replay.plot import Theme, save, style_times

_DAY = 86_400


def draw(curve: Curve, title: str, period: str, path: Path, theme: Theme) -> None:
    """Write a PNG or an SVG, by the name of the file. The drawing needs no window and no display."""
    figure = Figure(figsize=(11, 4), dpi=150, layout="constrained", facecolor=theme.background)
    axes = figure.subplots()
    edges = [(curve.start + i * curve.step) / _DAY for i in range(len(curve.counts) + 1)]
    axes.stairs(curve.counts, edges, fill=True, color=theme.allowed, label="count")
    axes.stairs(curve.counts, edges, color=theme.ink, linewidth=1.1)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, max(1, *curve.counts) * 1.06)
    text = printable(title, 90).encode("ascii", "backslashreplace").decode().replace("$", r"\$")  # no formula
    style_times(axes, f"count per {span_text(curve.step)}", period, text, theme)
    save(figure, path)
