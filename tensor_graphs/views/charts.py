"""charts: pictures with two logarithmic axes as plain SVG, used by pareto.py and roofline_chart.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

WIDTH, HEIGHT = 860, 560
LEFT, RIGHT, TOP, BOTTOM = 96, 30, 56, 70

APART = 26
"""Least distance in pixels between two labels: of closer points only the first is labelled."""

Ticks = Sequence[tuple[float, str]]
"""(pixels along an axis, label) of each tick."""


def opened(title: str, note: str) -> list[str]:
    """Return the beginning of a document, with a title on the left and a note on the right; `closed` ends it."""
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="13">')
    return [head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', text(LEFT, 26, title, size=15),
            text(WIDTH - RIGHT, 26, note, anchor="end", size=12)]


def closed(lines: Sequence[str]) -> str:
    return "\n".join([*lines, "</svg>", ""])


def frame(x_ticks: Ticks, y_ticks: Ticks, x_label: str, y_label: str) -> list[str]:
    """Return lines of SVG for both axes: a grid at the ticks, given in pixels, their labels, and the axes' names."""
    out = []
    for at, label in x_ticks:
        out += [line(at, TOP, at, HEIGHT - BOTTOM, "#ddd"), text(at, HEIGHT - BOTTOM + 20, label, anchor="middle")]
    for at, label in y_ticks:
        out += [line(LEFT, at, WIDTH - RIGHT, at, "#ddd"), text(LEFT - 10, at + 4, label, anchor="end")]
    middle = (TOP + HEIGHT - BOTTOM) / 2
    box = f'x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}"'
    return [*out, f'<rect {box} fill="none" stroke="#444"/>',
            text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 22, x_label, anchor="middle"),
            f'<text x="24" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 24 {middle:.1f})">{escape(y_label)}</text>']


class Circles:
    """SVG lines of circles, each with a title, and labels that do not overlap."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._labels: list[tuple[float, float]] = []

    def add(self, point: tuple[float, float], label: str, title: str, colour: str, *, filled: bool = True,
            radius: float = 5) -> None:
        x, y = point
        self.lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour if filled else "white"}" '
                          f'stroke="{colour}" stroke-width="1.5"><title>{escape(title)}</title></circle>')
        if all(math.dist(point, other) >= APART for other in self._labels):
            self._labels.append(point)
            self.lines.append(text(x + radius + 3, y - radius - 2, label, colour=colour))


def axis(values: Sequence[float], start: float, end: float) -> tuple[Callable[[float], float], list[float]]:
    """Return (value -> pixel, on a logarithmic scale; values of the ticks: decades, and 2 and 5 of each if those are few)."""
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


def line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def text(x: float, y: float, content: str, *, anchor: str = "start", size: int = 13, colour: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(content)}</text>'
