"""pareto: listed paths as a picture: time against error, both on logarithmic axes; those that no other beats in both are joined.

Plain SVG, written here. A point's number is its place in the list. An error of 0, and one that nobody has measured, have rows of
their own, since a logarithm has no place for them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from html import escape

from tensor_graphs.paths.path import Path

WIDTH, HEIGHT = 860, 560
LEFT, RIGHT, TOP, BOTTOM = 96, 30, 56, 70
ROW = 34
"""pixels of the row of errors that are unknown, or 0"""

APART = 26
"""pixels between two labels, at least: of points closer than that the first is labelled"""


def front(paths: Sequence[Path]) -> list[int]:
    """The places of the paths that no other beats in time and error, the fastest first. One of unknown error is in no front."""
    order = sorted((p.seconds, p.error, i) for i, p in enumerate(paths) if p.error is not None)
    found: list[int] = []
    least = math.inf
    for _, error, i in order:
        if error < least:
            least = error
            found.append(i)
    return found


def picture(paths: Sequence[Path], title: str) -> str:
    """The paths as an SVG document. title: what they compute, and at which sizes."""
    errors = [p.error for p in paths if p.error]
    zero, unknown = any(p.error == 0 for p in paths), any(p.error is None for p in paths)
    top, bottom = TOP + ROW * unknown, HEIGHT - BOTTOM - ROW * zero
    x, x_ticks = axis([p.seconds * 1e6 for p in paths], LEFT, WIDTH - RIGHT)
    y, y_ticks = axis(errors, bottom, top)

    def height(p: Path) -> float:
        return top - ROW * 0.6 if p.error is None else bottom + ROW * 0.6 if p.error == 0 else y(p.error)

    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="13">')
    out = [head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', _text(LEFT, 26, title, size=15)]
    for tick in x_ticks:
        out.append(_line(x(tick), TOP, x(tick), HEIGHT - BOTTOM, "#ddd"))
        out.append(_text(x(tick), HEIGHT - BOTTOM + 20, f"{tick:g}", anchor="middle"))
    rows = [(y(tick), f"{tick:.3g}") for tick in y_ticks if errors]
    rows += [(top - ROW * 0.6, "unknown")] * unknown + [(bottom + ROW * 0.6, "0")] * zero
    for at, said in rows:
        out += [_line(LEFT, at, WIDTH - RIGHT, at, "#ddd"), _text(LEFT - 10, at + 4, said, anchor="end")]
    out.append(f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}" fill="none" '
               'stroke="#444"/>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 22, "time of a run [µs], logarithmic", anchor="middle"))
    out.append(f'<text x="24" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 24 {middle:.1f})">'
               "largest relative error of a kernel, logarithmic</text>")
    best = front(paths)
    corners = [(x(paths[i].seconds * 1e6), height(paths[i])) for i in best]
    out += [_line(*a, *b, "#c33") for a, b in itertools.pairwise(corners)]
    labels: list[tuple[float, float]] = []
    for i in (*best, *(i for i in range(len(paths)) if i not in best)):
        p = paths[i]
        point = x(p.seconds * 1e6), height(p)
        colour, fill = "#c33" if i in best else "#36c", "white" if not p.measured else "#c33" if i in best else "#36c"
        said = f"{i + 1}: {p.id}, {p.seconds * 1e6:.1f} µs ({'measured' if p.measured else 'guess'}), error {p.error}"
        out.append(f'<circle cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="5" fill="{fill}" stroke="{colour}" stroke-width="1.5">'
                   f"<title>{escape(said)}</title></circle>")
        if all(math.dist(point, other) >= APART for other in labels):
            labels.append(point)
            out.append(_text(point[0] + 8, point[1] - 7, str(i + 1), colour=colour))
    out.append(_text(WIDTH - RIGHT, 26, "filled: measured · hollow: guess · red: beaten by none", anchor="end", size=12))
    return "\n".join([*out, "</svg>", ""])


def axis(values: Sequence[float], start: float, end: float) -> tuple[Callable[[float], float], list[float]]:
    """(value -> pixel, on a logarithmic scale; where to put ticks: decades, and 2 and 5 of each where that leaves few)."""
    low, high = (min(values), max(values)) if values else (1.0, 10.0)
    low, high = low / 1.25, high * 1.25
    span = math.log10(high / low)

    def place(value: float) -> float:
        return start + (end - start) * math.log10(value / low) / span

    digits = (1,) if span > 2.5 else (1, 2, 5) if span > 0.7 else tuple(d / 4 for d in range(4, 40))
    every = max(1, math.ceil(span / 8))
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [d * 10.0 ** e for e in decades if e % every == 0 for d in digits if low <= d * 10.0 ** e <= high]
    return place, ticks[::max(1, math.ceil(len(ticks) / 10))]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, said: str, *, anchor: str = "start", size: int = 13, colour: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(said)}</text>'
