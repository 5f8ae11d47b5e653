"""Pictures as SVG, whose ink and paper follow the colour scheme of the reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

INK, PAPER = "#1f2328", "#fefefe"
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_STYLE: Final = (
    "<style>:root { --ink: #1f2328; --paper: #ffffff } "
    "@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #131416 } }</style>"
)


def new_figure(name: str, *arguments: Any, **options: Any) -> tuple[Any, Any]:
    """Return a figure and its axes, as ``plt.subplots`` does. The name makes the numbers in the file the same."""
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    mpl.rcParams.update(dict.fromkeys(inked, INK) | dict.fromkeys(("figure.facecolor", "axes.facecolor"), PAPER))
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": name})
    return plt.subplots(*arguments, layout="constrained", **options)


def save(figure: Any, file: Path) -> None:
    """Write a figure. Without a date it changes only with its content."""
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    start, svg, rest = file.read_text().partition("<svg ")
    head, end, body = rest.partition(">")
    body = body.replace(INK, "var(--ink)").replace(PAPER, "var(--paper)")
    file.write_text("".join((start, svg, head, end, _STYLE, body)))
