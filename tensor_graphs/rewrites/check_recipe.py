"""check_recipe: a comparison of a rewritten graph with the float64 oracle, before the graph may be chosen.

Rules are proved or admitted one by one (admission.py). This module checks the result of a chain of rules once more, with every step
rounded as written, on random values at small sizes. Its error may not be much larger than the original graph's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, walk
from tensor_graphs.meaning.algebra import Array
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.errors import MeaningError
from tensor_graphs.meaning.interpreter import Mode, interpret

VERIFIER = "oracle 1"
"""Version of this comparison in traces. With a new version every recipe is compared again."""

MOST_ELEMENTS = 1 << 24
"""Limit on the elements of all operands, and of any atomic op's value. Larger graphs are accepted by their rules alone."""

WORSE, ROUNDOFFS = 2.0, 4.0
"""Factor by which a rewritten graph's error may exceed the original's, and roundings of an output that are always allowed."""

ROWS = 5
"""Size of a dim in the comparison, if its range allows that."""

MOST_SPECIAL = 1 << 18
"""Limit on the elements if infinities are drawn, since each graph then runs several times."""

SPECIAL = 0.05, 0.2, 0.5, 0.5
"""Shares of the operands' elements that are infinite or NaN, one share per run."""


@dataclass(frozen=True)
class Compared:
    """Result of a comparison: the errors of the rewritten graph (error) and of the original (own), the largest accepted error, and
    the sizes of the dims. Errors are None if nothing ran (too large, or indices or masks as inputs); then the rules alone
    decide."""

    error: float | None
    own: float | None
    allowed: float | None
    sizes: Mapping[str, int]

    @property
    def passed(self) -> bool:
        return self.error is None or self.allowed is None or self.error <= self.allowed


def compare(graph: Graph, other: Graph) -> Compared:
    """Compare the values of a rewritten graph with those of the original. Neither has states; the inputs of `other` are among those
    of `graph`. Of several outputs, report the one whose error is largest relative to its allowed error."""
    sizes: dict[str, int] = {}
    for sizes, inputs in _drawn(graph, other):
        if inputs is None:
            return Compared(None, None, None, sizes)
        modes: tuple[tuple[Graph, Mode], ...] = (graph, "real"), (graph, "as_written"), (other, "as_written")
        try:
            real, mine, its = (_run(g, inputs, sizes, mode) for g, mode in modes)
        except MeaningError:                                        # sizes in range that do not fit each other
            continue
        return _compared(graph, real, mine, its, sizes)
    return Compared(math.inf, 0.0, 0.0, sizes)                      # nothing speaks for it


def keeps_finite(graph: Graph, other: Graph) -> bool:
    """Return whether the rewritten graph is finite wherever the original is, for inputs with infinities and NaN. Proofs cover
    finite numbers alone: along an axis of size 1, log_softmax(x) and where(mask, log_softmax(x), 0) are 0; at ∞ only the latter can
    be."""
    for sizes, inputs in _drawn(graph, other, MOST_SPECIAL):
        if inputs is None:
            return True
        rng = np.random.default_rng(1)
        for share in SPECIAL:
            drawn = {name: np.where(rng.random(x.shape) < share, rng.choice([np.inf, -np.inf, np.nan], x.shape), x).astype(x.dtype)
                     for name, x in inputs.items()}
            try:
                mine, its = (_run(g, drawn, sizes, "as_written") for g in (graph, other))
            except MeaningError:
                break
            if not all(np.isfinite(its[name])[np.isfinite(mine[name])].all() for name in graph.outputs):
                return False
        else:
            return True
    return True


def _run(graph: Graph, inputs: Mapping[str, Array], sizes: Mapping[str, int], mode: Mode) -> Mapping[str, Array]:
    return interpret(graph, {n: inputs[n] for n in graph.inputs}, dims={n: sizes[n] for n in graph.dims}, mode=mode).outputs


def _drawn(graph: Graph, other: Graph, most: int = MOST_ELEMENTS) -> Iterator[tuple[dict[str, int], dict[str, Array] | None]]:
    """Yield small sizes of all dims with random operands of both graphs. Yield None for the operands if the graphs have more
    elements than `most`, or inputs that are not floats."""
    inputs = {**graph.inputs, **other.inputs}                       # the graph may not read all that the other one does
    dims = {**graph.dims, **other.dims}
    steps = {t.shape for g in (graph, other) for n in walk(expand_all(g.roots)) for t in n.types}
    for rows in (ROWS, 1):
        sizes = {name: d.clamp(rows, s) for name, s in dims.items()}
        shapes = {name: [int(d.evaluate(s, sizes)) for s in node.shape] for name, node in inputs.items()}
        largest = max(math.prod(int(d.evaluate(s, sizes)) for s in shape) for shape in steps)
        if max(largest, sum(map(math.prod, shapes.values()))) > most or not all(map(_is_drawn, inputs.values())):
            yield sizes, None
            return
        rng = np.random.default_rng(0)
        yield sizes, {name: rng.standard_normal(shapes[name], np.float32).astype(node.dtype.numpy) for name, node in inputs.items()}


def _compared(graph: Graph, real: Mapping[str, Array], mine: Mapping[str, Array], its: Mapping[str, Array],
              sizes: Mapping[str, int]) -> Compared:
    comparisons = []
    for name, node in graph.outputs.items():
        least = ROUNDOFFS * node.dtype.epsilon / 2 if node.dtype.is_float else 0.0
        # as one row: in a row of one element cancellation looks like error
        own, new = (measure(values[name].ravel(), real[name].ravel(), node.dtype).max_relative_error for values in (mine, its))
        new = new if new == new else math.inf
        comparisons.append(Compared(new, own, max(WORSE * own, least), sizes))
    return max(comparisons, key=lambda c: (not c.passed, (c.error or 0.0) - (c.allowed or 0.0)))


def _is_drawn(node: Node) -> bool:
    """Return whether random numbers are legal values of an input. They are not for indices and masks."""
    return node.dtype.is_float
