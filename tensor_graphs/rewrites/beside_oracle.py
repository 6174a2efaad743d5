"""beside_oracle: a graph in other words compared with the float64 oracle, before it may be chosen.

Rules are proved or admitted one by one (admission.py); what a chain of them makes of a graph is run here once more, every step
rounded as it is written, on random values at small sizes. It may not be off by much more than the graph itself is.
"""

from __future__ import annotations

import math

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret

MOST_ELEMENTS = 1 << 24
"""of all operands: what is larger rests on its rules alone"""

WORSE, ROUNDOFFS = 2.0, 4.0
"""times the error of the graph as written that other words may have, and roundings of an output that are always allowed"""

ROWS = 5
"""size of a dim, where its range allows it"""


def is_as_accurate(graph: Graph, other: Graph) -> bool:
    """Whether the other wording gives the graph's values with about the graph's own error. Neither has states; what the other reads
    is among the graph's inputs. True, too, for those that are too large to be looked at."""
    inputs = {**graph.inputs, **other.inputs}                       # the graph may not read all that the other one does
    dims = {**graph.dims, **other.dims}
    sizes = {name: min(d.bounds(s)[1], max(d.bounds(s)[0], ROWS)) for name, s in dims.items()}
    shapes = {name: [int(d.evaluate(s, sizes)) for s in node.shape] for name, node in inputs.items()}
    if sum(map(math.prod, shapes.values())) > MOST_ELEMENTS or not all(map(_is_drawn, inputs.values())):
        return True
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal(shapes[name], np.float32).astype(node.dtype.numpy) for name, node in inputs.items()}
    real = interpret(graph, {n: given[n] for n in graph.inputs}, dims=sizes, mode="real").outputs
    mine, its = (interpret(g, {n: given[n] for n in g.inputs}, dims=sizes, mode="as_written").outputs for g in (graph, other))
    for name, node in graph.outputs.items():
        allowed = ROUNDOFFS * node.dtype.epsilon / 2 if node.dtype.is_float else 0.0
        # as one row: in a row of one element cancellation looks like error
        own, new = (measure(made[name].ravel(), real[name].ravel(), node.dtype).max_relative_error for made in (mine, its))
        if not new <= max(WORSE * own, allowed):
            return False
    return True


def _is_drawn(node: Node) -> bool:
    """Whether random numbers say something: indices and masks have ranges of their own."""
    return node.dtype.is_float
