"""Draws the requests and rejections of a replay over time. matplotlib is an extra, and takes long to import."""

from __future__ import annotations

import os
from datetime import UTC
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ...errors import MissingExtraError
from ..output import count_text
from .report import STEPS, ReplayReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
_INK, _PAPER, _GRID = "#333333", "#ffffff", "#dddddd"
_DARK: Final = {_INK: "#e6edf3", _PAPER: "#131416", _GRID: "#3d444d"}
"""The colours of an SVG where the reader prefers a dark scheme."""
_ALLOWED: Final = "#8fb3d9"
_REJECTED: Final = "#c8342f"
_DAY: Final = 86_400  # matplotlib counts in days since 1970
_STYLE: Final[dict[Any, Any]] = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "date.converter": "concise",
    "legend.frameon": False,
    "svg.hashsalt": "ratelimit-mw",  # the same input gives the same file
}
_MIN_STEPS: Final = 20


def _check_picture(_ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Check the path of the picture, and the extra, before the work."""
    if path is None:
        return None
    if find_spec("matplotlib") is None:
        raise MissingExtraError(param.opts[0], "plot")
    if path.suffix.lower() not in (".png", ".svg") or not os.access(path.absolute().parent, os.W_OK):
        expected = "a file name that ends in .png or .svg, in a writable folder"
        raise click.BadParameter(f"expected {expected}; got {str(path)!r}")
    return path


plot_option = click.option(
    "--plot",
    metavar="PICTURE",
    callback=_check_picture,
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Draw demand, allowed and rejected requests over time, as .png or .svg.",
)


def draw(report: ReplayReport, path: Path) -> None:
    """Write a PNG or an SVG, by the name of the file. It needs no display."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(11, 4.6), dpi=150, layout="constrained")
        _draw_curves(figure.subplots(), report)
        if path.suffix.lower() == ".png":
            figure.savefig(path)
        else:
            svg = StringIO()
            figure.savefig(svg, format="svg", metadata={"Date": None})  # the same input gives the same file
            path.write_text(_with_dark_scheme(svg.getvalue()), "utf-8")


def _with_dark_scheme(svg: str) -> str:
    """Return a picture that is light or dark, as its reader prefers. A program without variables shows it light."""
    dark = " ".join(f"--{light[1:]}: {colour};" for light, colour in _DARK.items())
    for light in _DARK:
        svg = svg.replace(light, f"var(--{light[1:]}, {light})")
    return svg.replace("</style>", f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}</style>", 1)


def _draw_curves(axes: Axes, report: ReplayReport) -> None:
    """Draw demand as a line, above the areas of allowed and rejected requests. The days since 1970 are those of UTC."""
    curve = report.curve()
    step, first, last = curve["step"], curve["times"][0], curve["times"][-1]
    counts = dict(zip(curve["times"], zip(curve["requests"], curve["rejected"], strict=True), strict=True))
    times = range(first, last + step, step)
    demand, rejected = zip(*(counts.get(time, (0, 0)) for time in times), strict=True)
    edges = [(first + i * step) / _DAY for i in range(len(times) + 1)]
    allowed = [requests - lost for requests, lost in zip(demand, rejected, strict=True)]
    axes.stairs(allowed, edges, fill=True, color=_ALLOWED, label="allowed")
    axes.stairs(demand, edges, baseline=allowed, fill=True, color=_REJECTED, label="rejected")
    axes.stairs(demand, edges, color=_INK, linewidth=1.1, label="demand")
    axes.set_xlim(edges[0], max(edges[-1], edges[0] + _MIN_STEPS * (edges[1] - edges[0])))
    axes.set_ylim(0, max(demand) * 1.06)
    total, lost = report.log.count, report.rejected
    title = f"{count_text(total, 'request')}, {lost:,} rejected ({lost / total:.1%})"
    axes.set(title=title, xlabel=report.period, ylabel=f"requests per {STEPS[step]}")
    axes.xaxis_date(UTC)
    axes.xaxis.get_offset_text().set_visible(False)  # the label of the axis contains the year
    axes.yaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    axes.grid(axis="y", color=_GRID)
