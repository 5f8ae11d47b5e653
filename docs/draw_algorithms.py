"""Draws the pictures of algorithms.md: the same traffic through every algorithm, decided by the package itself.

`make docs` runs it. Time is a ManualClock, so the pictures are the same every time. It knows nothing of how an
algorithm counts: the curves show the consumed share that `peek` reports.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.testing import ManualClock

IMAGES = Path(__file__).parent / "images"
LIMIT = "10/minute"
N = 10
PERIOD = 60
START = 1_000_000 * PERIOD  # the start of a minute
END = 180

ALLOWED, REJECTED, CURVE, WAIT, WINDOW = "#0072B2", "#D55E00", "#999999", "#009E73", "#F0E442"
INK, PAPER = "#1f2328", "#fefefe"
STYLE = """<style>
:root { --ink: #1f2328; --paper: #ffffff }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #131416 } }
</style>"""
"""One file has both schemes: the two colours above become these variables."""

STEADY = [5.0, 15.0, 25.0]
ACROSS_THE_EDGE = [41.0 + 1.5 * i for i in range(12)] + [61.0 + 1.5 * i for i in range(12)]
AFTERWARDS = [100.0, 110.0] + [150.0 + 1.5 * i for i in range(8)]
TRAFFIC = STEADY + ACROSS_THE_EDGE + AFTERWARDS
"""Arrivals in seconds: a calm client that sends two bursts on both sides of a full minute, and one later."""


@dataclass(frozen=True)
class Drawn:
    """One picture: an algorithm, its title and the meaning of its curve."""

    file: str
    algorithm: str | dict[str, object]
    title: str
    curve: str
    edges: bool = False


PICTURES = (
    Drawn("fixed-window", "fixed-window", "fixed-window", "count of this window", edges=True),
    Drawn("sliding-window-log", "sliding-window-log", "sliding-window-log", "hits in the last minute"),
    Drawn(
        "sliding-window-log-rejected",
        {"name": "sliding-window-log", "count_rejected": True},
        "sliding-window-log, count_rejected = true",
        "hits in the last minute",
    ),
    Drawn(
        "sliding-window-counter",
        "sliding-window-counter",
        "sliding-window-counter",
        "estimate for the last minute",
        edges=True,
    ),
    Drawn(
        "tiered-window",
        {"name": "tiered-window", "precision": "15s"},
        'tiered-window, precision = "15s"',
        "hits in the last 4 buckets",
    ),
    Drawn("token-bucket", "token-bucket", "token-bucket, leaky-bucket and gcra", "tokens consumed, or level"),
    Drawn(
        "token-bucket-interval",
        {"name": "token-bucket", "refill": "interval"},
        'token-bucket, refill = "interval"',
        "tokens consumed",
    ),
    Drawn(
        "leaky-bucket-queue",
        {"name": "leaky-bucket", "mode": "queue"},
        'leaky-bucket, mode = "queue"',
        "requests in the queue",
    ),
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one arrival: the consumed share after the decision, and its delay."""

    at: float
    allowed: bool
    used: int
    delay: float


class Run:
    """Traffic through one limiter, and the consumed share at every moment."""

    def __init__(self, algorithm: object, traffic: list[float], end: float = END) -> None:
        self._clock = ManualClock(START)
        self._limiter = Limiter([Rule(limits=LIMIT, key=[], algorithm=algorithm)], clock=self._clock)
        self.outcomes: list[Outcome] = []
        self.times: list[float] = []
        self.used: list[int] = []
        moments = sorted([(t / 10, False) for t in range(int(end * 10) + 1)] + [(at, True) for at in traffic])
        for at, is_hit in moments:
            self._clock.set(START + at)
            if is_hit:
                self._hit(at)
            if [used := self._used()] != self.used[-1:] or at == moments[-1][0]:
                self.times.append(at)
                self.used.append(used)

    def _hit(self, at: float) -> None:
        verdict = self._limiter.hit({})
        self.outcomes.append(Outcome(at, verdict.allowed, self._used(), verdict.delay))

    def _used(self) -> int:
        decision = self._limiter.peek({}, cost=0).decisions[0]
        return decision.limit - decision.remaining


def draw_one(picture: Drawn) -> None:
    """One algorithm: the consumed share over time, and the allowed arrivals."""
    run = Run(picture.algorithm, TRAFFIC)
    figure, axes = plt.subplots(figsize=(8.5, 2.5), layout="constrained")
    _draw_run(axes, run, picture.edges)
    passed = sum(outcome.allowed for outcome in run.outcomes)
    axes.set_title(f"{picture.title}: {passed} of {len(TRAFFIC)} pass", loc="left", fontsize=11, fontweight="bold")
    axes.set_ylabel(picture.curve, fontsize=9)
    _save(figure, picture.file)


def _draw_run(axes: Axes, run: Run, edges: bool, end: float = END) -> None:
    axes.step(run.times, run.used, where="post", color=CURVE, linewidth=1.2, zorder=1)
    axes.fill_between(run.times, run.used, step="post", color=CURVE, alpha=0.15, zorder=0)
    axes.axhline(N, color=INK, linewidth=0.8, linestyle="--", zorder=1)
    axes.text(1.005, N, "limit 10", va="center", fontsize=9, transform=axes.get_yaxis_transform())
    if edges:
        for edge in range(0, int(end) + 1, PERIOD):
            axes.axvline(edge, color=INK, linewidth=0.6, linestyle=":", zorder=0)
    _draw_outcomes(axes, run.outcomes)
    axes.set_xlim(-2, end)
    axes.set_ylim(0, N * 1.25)
    axes.set_yticks(range(0, N + 1, 5))
    axes.set_xticks(range(0, int(end) + 1, 30 if end > 120 else 10))
    axes.set_xlabel("seconds", fontsize=9)
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_outcomes(axes: Axes, outcomes: list[Outcome]) -> None:
    at_once = [o for o in outcomes if o.allowed and not o.delay]
    waiting = [o for o in outcomes if o.allowed and o.delay]
    rejected = [o for o in outcomes if not o.allowed]
    axes.scatter([o.at for o in at_once], [o.used for o in at_once], s=26, color=ALLOWED, zorder=3, label="allowed")
    for outcome in waiting:  # moves up in the queue, and starts when it is the first
        start = outcome.at + outcome.delay
        axes.plot([outcome.at, start], [outcome.used, 1], color=WAIT, linewidth=0.8, zorder=2)
    if waiting:
        arrivals, starts = [o.at for o in waiting], [o.at + o.delay for o in waiting]
        axes.scatter(arrivals, [o.used for o in waiting], s=26, facecolors=PAPER, edgecolors=WAIT, zorder=3)
        axes.scatter(starts, [1] * len(starts), s=26, color=WAIT, zorder=3, label="starts after waiting")
    axes.scatter(
        [o.at for o in rejected],
        [N * 1.15] * len(rejected),
        s=28,
        color=REJECTED,
        marker="x",
        zorder=3,
        label="rejected",
    )
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=3,
        fontsize=9,
        frameon=False,
        handletextpad=0.2,
        columnspacing=1,
    )


def draw_overview() -> None:
    """All algorithms, one line each: which of the same arrivals passed."""
    figure, axes = plt.subplots(figsize=(9.5, 4.2), layout="constrained")
    for row, picture in enumerate(PICTURES):
        outcomes = Run(picture.algorithm, TRAFFIC).outcomes
        _draw_strip(axes, row, outcomes)
        axes.text(END - 12, row, f"{sum(o.allowed for o in outcomes)} of {len(TRAFFIC)}", va="center", fontsize=10)
    axes.set_yticks(range(len(PICTURES)), [picture.title for picture in PICTURES], fontsize=10)
    axes.invert_yaxis()
    axes.set_xlim(-2, END)
    axes.set_xticks(range(0, END - 10, 30))
    for edge in range(0, END - 10, PERIOD):
        axes.axvline(edge, color=INK, linewidth=0.6, linestyle=":", zorder=0)
    axes.set_xlabel("seconds (dotted: full minutes)", fontsize=10)
    figure.suptitle(
        f"The same {len(TRAFFIC)} requests under {LIMIT}", x=0.01, ha="left", fontsize=12, fontweight="bold"
    )
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, fontsize=10, frameon=False, handlelength=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, "overview")


def _draw_strip(axes: Axes, row: int, outcomes: list[Outcome]) -> None:
    """Long bars pass, short bars are rejected."""
    at_once = [o.at for o in outcomes if o.allowed and not o.delay]
    waiting = [o.at for o in outcomes if o.allowed and o.delay]
    rejected = [o.at for o in outcomes if not o.allowed]
    bars = (
        ("allowed", at_once, 0.34, ALLOWED),
        ("allowed after waiting", waiting, 0.34, WAIT),
        ("rejected", rejected, 0.12, REJECTED),
    )
    for label, at, height, color in bars:
        is_new = label not in axes.get_legend_handles_labels()[1]
        if at:
            axes.vlines(at, row - height, row + height, color=color, linewidth=2.4, label=label if is_new else None)


LATE_BURST = [59.0 + i / 10 for i in range(10)] + [60.0 + 6 * i for i in range(10)]
"""All of the quota at the end of a minute, then exactly the rate: the most that the counter allows."""


def draw_counter_bound() -> None:
    """The counter and the log on the traffic that the counter is worst at."""
    figure, rows = plt.subplots(2, 1, figsize=(8, 4.8), layout="constrained", sharex=True)
    for axes, algorithm in zip(rows, ("sliding-window-counter", "sliding-window-log"), strict=True):
        run = Run(algorithm, LATE_BURST, end=122)
        _draw_run(axes, run, edges=True, end=122)
        passed = [outcome.at for outcome in run.outcomes if outcome.allowed and outcome.at < 59 + PERIOD]
        axes.axvspan(59, 59 + PERIOD, color=WINDOW, alpha=0.25, zorder=-1, linewidth=0)
        axes.set_title(f"{algorithm}: {len(passed)} pass within 60 s", loc="left", fontsize=11, fontweight="bold")
        axes.set_ylabel("used up", fontsize=9)
        axes.set_xlim(45, 122)
    rows[0].set_xlabel("")
    _save(figure, "counter-bound")


def _save(figure: plt.Figure, name: str) -> None:
    # Without a date and the version that drew it, a picture changes only when what it shows does.
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    start, svg, body = text.getvalue().partition("<svg ")
    head, end, body = body.partition(">")
    picture = "".join((start, svg, head, end, STYLE, body)).replace(INK, "var(--ink)").replace(PAPER, "var(--paper)")
    (IMAGES / f"{name}.svg").write_text(picture.replace("--ink: var(--ink)", f"--ink: {INK}"))


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    mpl.rcParams.update(dict.fromkeys(inked, INK) | dict.fromkeys(("figure.facecolor", "axes.facecolor"), PAPER))
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "algorithms"})
    for picture in PICTURES:
        draw_one(picture)
    draw_overview()
    draw_counter_bound()


if __name__ == "__main__":
    main()
