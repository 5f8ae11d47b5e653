"""Draws a curve of a traffic log with matplotlib."""

from pathlib import Path

from ...operations.times import span_text
from ...traffic import Curve
from ..replay.plot import Theme, ascii_text, edges_of, new_figure, save, style_times


def draw(curve: Curve, title: str, period: str, path: Path, theme: Theme) -> None:
    """Write a PNG or an SVG, by the name of the file."""
    figure = new_figure(4, theme)
    axes = figure.subplots()
    edges = edges_of(curve.start, curve.step, curve.counts)
    axes.stairs(curve.counts, edges, fill=True, color=theme.allowed, label="count")
    axes.stairs(curve.counts, edges, color=theme.ink, linewidth=1.1)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, max(1, *curve.counts) * 1.06)
    text = ascii_text(title, 90).replace("$", r"\$")  # no formula
    style_times(axes, f"count per {span_text(curve.step)}", period, text, theme)
    save(figure, path)
