"""fewer_bits: how far off a graph's outputs will probably be where its products of floats round their operands
(`Kernel.precision`).

As in rounding.py, an error for each rounding, amplified by what comes behind it. Here products round, be they in the definition of
a composite or written as a sum of products: both operands of each, and of some million sums the furthest is off by 3.3 unit
roundoffs (meaning/precision.py), so that one counts as LEAST of them where little comes behind it. What comes behind counts as a
rounding there if it is another product or a smooth composite, which hands on about the relative error that it was given; as STEEP
of them if it is a power, a logarithm, a reciprocal or a sine, which make absolute errors relative ones or the other way round: a
softmax of products of 256 was off by 17 unit roundoffs, an exp by 23. A comparison of what products make, and what nothing is known
of (an op without a definition, a loop of unknown length), allow no rounding at all.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

from tensor_graphs.costs.rounding import amplified, predicted_error
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language.composite import CompositeOp, expand_all
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.precision import Precision

LEAST = 4.0
"""unit roundoffs that a product is off by"""

STEEP = 64.0
"""roundings as which a steep op counts behind a product"""

_predicted: weakref.WeakKeyDictionary[Graph, dict[Precision, float]] = weakref.WeakKeyDictionary()


def too_coarse(graph: Graph | None, precision: Precision, tolerance: float, backends: Sequence[str] = ()) -> str:
    """Why no product of a graph may have a precision; "" where it may. None: nobody has the graph any more."""
    predicted = math.inf if graph is None else predicted_with(graph, precision, backends)
    if predicted <= tolerance:
        return ""
    if math.isinf(predicted):
        return f"products of {precision.name} may decide something here (a comparison, say), or it is not known what comes of them"
    return f"products of {precision.name} are predicted to cost {predicted:.2e}, beyond the tolerance {tolerance:.2e}"


def predicted_with(graph: Graph, precision: Precision, backends: Sequence[str] = ()) -> float:
    """The relative error of the graph's outputs and states, if all its products of floats have this precision: that of one, at
    least. Infinite where a result may be another one altogether, and where the graph cannot be written out. Remembered with it."""
    known = _predicted.setdefault(graph, {})
    if precision not in known:
        try:
            written = expand_all(graph.roots, lambda node: node.op.facts.steep is not None, loops=True)
        except TensorGraphsError:                                   # too large, or of a length that is not known
            known[precision] = math.inf
        else:
            units = amplified(written, lambda node: float(_is_product(node)), _behind, LEAST)
            known[precision] = precision.unit * max(LEAST, units)
    return predicted_error(graph, backends) + known[precision]


def _behind(node: Node) -> float:
    """For how many roundings it counts behind a product."""
    is_of_floats, facts = any(i.dtype.is_float for i in node.inputs), node.op.facts
    if _is_product(node) or facts.steep is not None:
        return STEEP if facts.steep else 1.0
    leaps = not node.dtype.is_float or facts.compares or facts.dtype_matters or node.op.name == "floor"
    if isinstance(node.op, CompositeOp) or (is_of_floats and leaps):
        return math.inf
    return STEEP if facts.rounds and not (facts.ring or facts.writes) else 0.0


def _is_product(node: Node) -> bool:
    """A sum of products of floats of 32 bits or fewer, as the definitions of all products have it."""
    if not node.types[0].dtype.is_float or node.types[0].dtype.itemsize > 4:
        return False
    return node.op.name == "sum" and _through_views(node.inputs[0]).op.name == "mul"


def _through_views(node: Node) -> Node:
    while node.op.facts.view or node.op.name == "cast":
        node = node.inputs[0]
    return node
