"""check_recipe: compare a rewritten graph with the float64 oracle, before it may be chosen.

Rules are proved or admitted one by one (admission.py); here the result of a chain of them runs once more, every step rounded as
written, on random values at small sizes. Its error may not be much larger than the graph's own.
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
"""version of this comparison, as traces say it; another one compares every recipe again"""

MOST_ELEMENTS = 1 << 24
"""of all operands, and of the largest value of any atomic op that is computed: what is larger rests on its rules alone"""

WORSE, ROUNDOFFS = 2.0, 4.0
"""times the error of the graph as written that other words may have, and roundings of an output that are always allowed"""

ROWS = 5
"""size of a dim, where its range allows it"""

MOST_SPECIAL = 1 << 18
"""elements at most where infinities are drawn, since each graph then runs several times"""

SPECIAL = 0.05, 0.2, 0.5, 0.5
"""shares of the operands' elements that are drawn infinite or NaN, one share for each run"""


@dataclass(frozen=True)
class Compared:
    """error: of the rewritten graph; own: of the original; allowed: the largest error accepted. error and own are None where
    nothing was run, as the graphs are too large or random numbers prove nothing: those rest on their rules. sizes: of the dims."""

    error: float | None
    own: float | None
    allowed: float | None
    sizes: Mapping[str, int]

    @property
    def passed(self) -> bool:
        return self.error is None or self.allowed is None or self.error <= self.allowed


def compare(graph: Graph, other: Graph) -> Compared:
    """Compare the values of a rewritten graph, at about the graph's own error. Neither has states; the rewritten graph's inputs are
    among the graph's. Of several outputs, report the one that is worst relative to its allowed error."""
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
    """Return whether the rewritten graph is finite where the graph is, with infinities and NaN among the inputs. A proof covers
    numbers alone: along an axis of size 1 log_softmax(x) and where(mask, log_softmax(x), 0) are 0, and at ∞ only the second may be.
    """
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
    """Yield small sizes of all dims with random operands of both graphs; nothing where they have more elements than `most`, or
    where random numbers prove nothing."""
    inputs = {**graph.inputs, **other.inputs}                       # the graph may not read all that the other one does
    dims = {**graph.dims, **other.dims}
    steps = {n.shape for g in (graph, other) for n in walk(expand_all(g.roots))}
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
    """Return whether random numbers are legal values: indices and masks have ranges of their own."""
    return node.dtype.is_float
