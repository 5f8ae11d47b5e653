"""Draws a replay: requests and rejections over time, and the clients with most rejections."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..output import count_text
from ..plot import Theme, ascii_text, day_of, picture, style_counts, style_times
from .report import STEPS, ClientRow, ReplayReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MIN_STEPS: Final = 20


def draw(report: ReplayReport, path: Path, limit: int, theme: Theme) -> None:
    """Write a PNG or an SVG, by the name of the file."""
    top = report.top(limit)
    clients = [row for row in top if row.rejected] or top
    bottom = 0.9 + 0.33 * len(clients)
    with picture(path, 4.6 + bottom, theme) as figure:
        upper, lower = figure.subplots(2, 1, height_ratios=[3.9, bottom])
        figure.get_layout_engine().set(hspace=0.06, h_pad=0.12, w_pad=0.12)  # type: ignore[union-attr, call-arg]
        _draw_curves(upper, report, theme)
        _draw_clients(lower, clients, theme)


def _draw_curves(axes: Axes, report: ReplayReport, theme: Theme) -> None:
    """Draw demand as a line, above the areas of allowed and rejected requests."""
    curve = report.curve()
    step = curve["step"]
    edges, demand, rejected = _with_gaps(curve)
    allowed = [requests - lost for requests, lost in zip(demand, rejected, strict=True)]
    axes.stairs(allowed, edges, fill=True, color=theme.allowed, label="allowed")
    axes.stairs(demand, edges, baseline=allowed, fill=True, color=theme.rejected, label="rejected")
    axes.stairs(demand, edges, color=theme.ink, linewidth=1.1, label="demand")
    axes.set_xlim(edges[0], max(edges[-1], edges[0] + day_of(_MIN_STEPS * step)))
    axes.set_ylim(0, max(demand) * 1.06)
    total, lost = report.log.count, report.rejected
    title = f"{count_text(total, 'request')}, {lost:,} rejected ({lost / total:.1%})"
    style_times(axes, f"requests per {STEPS[step]}", report.period, title)


def _with_gaps(curve: dict[str, Any]) -> tuple[list[float], list[int], list[int]]:
    """Return the edges of the steps, the requests and the rejections, with zeros where no request was."""
    step, times = curve["step"], curve["times"]
    edges, demand, rejected = [times[0]], list[int](), list[int]()
    for (time, following), *counts in zip(pairwise([*times, None]), curve["requests"], curve["rejected"], strict=True):
        edges.append(time + step)
        demand.append(counts[0])
        rejected.append(counts[1])
        if following is not None and following > time + step:
            edges.append(following)
            demand.append(0)
            rejected.append(0)
    return list(map(day_of, edges)), demand, rejected


def _draw_clients(axes: Axes, clients: Sequence[ClientRow], theme: Theme) -> None:
    rows, rejected = range(len(clients)), [row.rejected for row in clients]
    axes.barh(rows, rejected, 0.7, color=theme.rejected)
    bars = axes.barh(rows, [row.requests - row.rejected for row in clients], 0.7, rejected, color=theme.allowed)
    axes.bar_label(bars, [f"{row.rejected:,} of {row.requests:,}" for row in clients], padding=7, fontsize=9)
    axes.set_yticks(rows, [ascii_text(row.client, 40) for row in clients], parse_math=False)
    axes.set_ylim(len(clients) - 0.4, -0.6)
    axes.set_xlim(0, max(row.requests for row in clients) * 1.12)
    style_counts(axes.xaxis)
    title = "Clients with most rejections" if any(rejected) else "No client was rejected: clients with most requests"
    axes.set(title=title, xlabel="requests: rejected, then allowed")
