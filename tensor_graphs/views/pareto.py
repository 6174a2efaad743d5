"""pareto: a picture of listed paths or forms: time against error, both on logarithmic axes. The paths of the Pareto front are
joined by lines.

A point's label is its number in the list. Errors that are 0 or unknown have rows of their own, as a logarithm cannot show them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Protocol

from tensor_graphs.views import charts
from tensor_graphs.views.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, axis

ROW = 34
"""Height in pixels of the row of errors that are unknown, or 0."""


class ChartPoint(Protocol):
    """A point of the chart. seconds: of a run. error: None if unknown; 0 and None are drawn in rows of their own."""

    @property
    def id(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def error(self) -> float | None: ...
    @property
    def measured(self) -> bool: ...


def front(paths: Sequence[ChartPoint]) -> list[int]:
    """Return the indices of the paths that no other beats in time and error, the fastest first; none of unknown error."""
    order = sorted((p.seconds, p.error, i) for i, p in enumerate(paths) if p.error is not None)
    places: list[int] = []
    least = math.inf
    for _, error, i in order:
        if error < least:
            least = error
            places.append(i)
    return places


def picture(paths: Sequence[ChartPoint], title: str, of_error: str = "largest relative error of a kernel, logarithmic") -> str:
    """Return the paths drawn as an SVG document. title: the graph, and its sizes. of_error: text for the axis of errors."""
    errors = [p.error for p in paths if p.error]
    zero, unknown = any(p.error == 0 for p in paths), any(p.error is None for p in paths)
    top, bottom = TOP + ROW * unknown, HEIGHT - BOTTOM - ROW * zero
    x, x_ticks = axis([p.seconds * 1e6 for p in paths], LEFT, WIDTH - RIGHT)
    y, y_ticks = axis(errors, bottom, top)

    def height(p: ChartPoint) -> float:
        return top - ROW * 0.6 if p.error is None else bottom + ROW * 0.6 if p.error == 0 else y(p.error)

    rows = [(y(tick), f"{tick:.3g}") for tick in y_ticks if errors]
    rows += [(top - ROW * 0.6, "unknown")] * unknown + [(bottom + ROW * 0.6, "0")] * zero
    out = charts.opened(title, "filled: measured · hollow: estimate · red: beaten by none")
    out += charts.frame([(x(tick), f"{tick:g}") for tick in x_ticks], rows, "time of a run [µs], logarithmic",
                     of_error)
    best = front(paths)
    corners = [(x(paths[i].seconds * 1e6), height(paths[i])) for i in best]
    out += [charts.line(*a, *b, "#c33") for a, b in itertools.pairwise(corners)]
    points = charts.Circles()
    for i in (*best, *(i for i in range(len(paths)) if i not in best)):
        p = paths[i]
        title_of_point = f"{i + 1}: {p.id}, {p.seconds * 1e6:.1f} µs ({'measured' if p.measured else 'estimate'}), error {p.error}"
        points.add((x(p.seconds * 1e6), height(p)), str(i + 1), title_of_point, "#c33" if i in best else "#36c", filled=p.measured)
    return charts.closed([*out, *points.lines])
