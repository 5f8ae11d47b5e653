"""Draws the picture of how a request is decided: the steps, and the files of the package that do them.

`make docs` runs it. The picture has no colours of its own: one style serves light and dark pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
IMAGE = ROOT / "docs" / "images" / "request.svg"
STYLE = """<style>
:root { --ink: #1f2328; --faint: #57606a; --line: #0072B2; --paper: #ffffff }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --faint: #9aa4af; --line: #56B4E9; --paper: #131416 } }
text { font-family: sans-serif; fill: var(--ink); font-size: 13px }
.name { font-weight: bold; font-size: 15px }
.file { font-family: monospace; fill: var(--faint); font-size: 11px }
.box { fill: none; stroke: var(--ink) }
.way { fill: none; stroke: var(--line); stroke-width: 2; marker-end: url(#end) }
.later { stroke-dasharray: 5 4 }
</style>"""
WIDTH, HEIGHT = 190, 92
"""The size of a box."""
ACROSS, DOWN = 240, 150
"""The distances between boxes."""
LEFT, TOP = 20, 44


class Step(NamedTuple):
    """A step: its name, its work, its files, and its column and row."""

    name: str
    does: str
    files: tuple[str, str]
    column: int
    row: int


STEPS = (
    Step("middleware", "translates the framework", ("asgi/middleware.py", "wsgi/middleware.py"), 0, 0),
    Step("features", "reads IP address, user, …", ("http/features.py", "http/client_ip.py"), 1, 0),
    Step("rule set", "finds the rules, once a path", ("rules/ruleset.py", "rules/match.py"), 2, 0),
    Step("plan", "has limits, keys and costs", ("rules/plan.py", "rules/compiled.py"), 3, 0),
    Step("limiter", "asks once for all limits", ("limiter/limiter.py", "limiter/programs.py"), 3, 1),
    Step("store", "decides at one instant", ("stores/memory/store.py", "limiter/remote/store.py"), 2, 1),
    Step("verdict", "has a decision per limit", ("decision/verdict.py", "decision/limit.py"), 1, 1),
    Step("response", "gets headers, or is a 429", ("http/headers.py", "http/rejection.py"), 0, 1),
)


def place(step: Step) -> tuple[int, int]:
    """Return the upper left corner of the box of a step."""
    return LEFT + step.column * ACROSS, TOP + step.row * DOWN


def box(step: Step) -> list[str]:
    x, y = place(step)
    for file in step.files:
        if not (ROOT / "ratelimit_mw" / file).is_file():
            raise FileNotFoundError(f"the step {step.name!r} names {file}, which is no file of the package")
    lines = [
        ("name", step.name, 22),
        ("does", step.does, 43),
        *(("file", f, 64 + 16 * i) for i, f in enumerate(step.files)),
    ]
    texts = [f'<text class="{kind}" x="{x + 10}" y="{y + down}">{text}</text>' for kind, text, down in lines]
    return [f'<rect class="box" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>', *texts]


def way(step: Step, following: Step) -> str:
    """Return the arrow from a step to the one that follows it."""
    x, y = place(step)
    right = following.column - step.column
    if not right:
        return f'<path class="way" d="M{x + WIDTH // 2} {y + HEIGHT} v{DOWN - HEIGHT - 6}"/>'
    start = x + WIDTH if right > 0 else x
    return f'<path class="way" d="M{start} {y + HEIGHT // 2} h{right * (ACROSS - WIDTH - 6)}"/>'


def picture() -> str:
    """Return the picture as SVG."""
    (response_x, bottom), (limiter_x, _) = place(STEPS[7]), place(STEPS[4])
    under = bottom + HEIGHT
    width, height = limiter_x + WIDTH + LEFT, under + 62
    entry = LEFT + WIDTH // 2
    start, end = response_x + WIDTH // 2, limiter_x + WIDTH // 2
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            "<title>How a request is decided</title>",
            STYLE,
            '<marker id="end" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="5" markerHeight="5" orient="auto">',
            '<path d="M0 0 L8 4 L0 8 z" fill="var(--line)"/></marker>',
            f'<rect width="{width}" height="{height}" fill="var(--paper)"/>',
            f'<text x="{entry + 10}" y="20">request</text>',
            f'<path class="way" d="M{entry} 6 V{TOP - 4}"/>',
            *(line for step in STEPS for line in box(step)),
            *map(way, STEPS[:-1], STEPS[1:]),
            f'<path class="way later" d="M{start} {under} v24 H{end} V{under + 4}"/>',
            f'<text x="{start + 10}" y="{under + 42}">when the response ends: return slots, refund, settle</text>',
            f'<text class="file" x="{start + 350}" y="{under + 42}">http/admission.py, limiter/settlement.py</text>',
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    IMAGE.write_text(picture())
