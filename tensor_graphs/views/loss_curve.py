"""loss_curve: losses of a training run as a picture (SVG, both axes logarithmic), and as one line for a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tensor_graphs.views import charts

BARS = "▁▂▃▄▅▆▇█"
LEAST = 1e-9
"""a smaller loss, or one below 0, is drawn here"""
MOST_POINTS = 400


def averages(losses: Sequence[float], most: int) -> list[tuple[float, float]]:
    """Return up to `most` points (number of the last step, mean loss) of neighbouring steps."""
    count = min(len(losses), most)
    borders = [len(losses) * i // count for i in range(count + 1)] if count else []
    return [(end, sum(losses[start:end]) / (end - start)) for start, end in itertools.pairwise(borders)]


def in_one_line(losses: Sequence[float], columns: int = 60) -> str:
    """Return a bar for each group of steps, from the least to the largest of their mean losses."""
    means = [loss for _, loss in averages(losses, columns)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    return "".join(BARS[int((loss - low) / ((high - low) or 1.0) * (len(BARS) - 1) + 0.5)] for loss in means)


def picture(losses: Sequence[float], title: str) -> str:
    """Return an SVG document: a line through the mean losses of groups of steps."""
    points = [(step, max(loss, LEAST)) for step, loss in averages(losses, MOST_POINTS)]
    x, x_ticks = charts.axis([step for step, _ in points], charts.LEFT, charts.WIDTH - charts.RIGHT)
    y, y_ticks = charts.axis([loss for _, loss in points], charts.HEIGHT - charts.BOTTOM, charts.TOP)
    lines = charts.opened(title, f"{len(losses)} steps")
    lines += charts.frame([(x(t), f"{t:g}") for t in x_ticks], [(y(t), f"{t:g}") for t in y_ticks], "step", "loss")
    path = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in points)
    return charts.closed([*lines, f'<polyline points="{path}" fill="none" stroke="#1f6fb2" stroke-width="1.5"/>'])
