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

from tensor_graphs.costs.rounding import AMPLIFICATION, predicted_error
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language.composite import CompositeOp, expand_all
from tensor_graphs.language.composites.convolution import conv
from tensor_graphs.language.composites.elementary import (
    cos,
    erf,
    exp,
    expm1,
    gaussian,
    gelu,
    log,
    log1p,
    relu,
    sigmoid,
    silu,
    softplus,
    tan,
    tanh,
)
from tensor_graphs.language.composites.gated import gated
from tensor_graphs.language.composites.normalisation import (
    batch_norm,
    group_norm,
    layer_norm,
    log_softmax,
    logsumexp,
    rms_norm,
    softmax,
)
from tensor_graphs.language.composites.products import dot, linear
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, walk
from tensor_graphs.meaning.precision import Precision

LEAST = 4.0
"""unit roundoffs that a product is off by"""

STEEP = 64.0

PRODUCTS = (linear, dot, conv)

SMOOTH = (erf, gaussian, gelu, relu, sigmoid, silu, softplus, tanh, gated, batch_norm, group_norm, layer_norm, rms_norm)

STEEP_OPS = (cos, exp, expm1, log, log1p, tan, softmax, log_softmax, logsumexp)

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
            written = expand_all(graph.roots, lambda node: node.op in (*PRODUCTS, *SMOOTH, *STEEP_OPS), loops=True)
        except TensorGraphsError:                                   # too large, or of a length that is not known
            known[precision] = math.inf
        else:
            known[precision] = precision.unit * max(LEAST, _roundings(written))
    return predicted_error(graph, backends) + known[precision]


def _roundings(roots: Sequence[Node]) -> float:
    """What the roundings of all products come to, in unit roundoffs."""
    order = walk(roots)
    made: set[Node] = set()
    """values that hang on a product"""
    for node in order:
        if _is_product(node) or any(i in made for i in node.inputs):
            made.add(node)
    behind = dict.fromkeys(order, 0.0)
    for node in reversed(order):
        through = behind[node] + _amplifies(node) if node in made else 0.0
        for i in node.inputs:
            behind[i] = max(behind[i], through if i in made else 0.0)
    error: dict[Node, float] = {}
    for node in order:
        own = max(LEAST, 1 + AMPLIFICATION * math.sqrt(behind[node])) if _is_product(node) else 0.0
        error[node] = own + max((error[i] for i in node.inputs), default=0.0)
    return max((error[r] for r in roots), default=0.0)


def _amplifies(node: Node) -> float:
    """For how many roundings it counts behind a product."""
    if node.op in SMOOTH or _is_product(node):
        return 1.0
    if node.op in STEEP_OPS:
        return STEEP
    is_of_floats, facts = any(i.dtype.is_float for i in node.inputs), node.op.facts
    leaps = not node.dtype.is_float or facts.compares or facts.dtype_matters or node.op.name == "floor"
    if isinstance(node.op, CompositeOp) or (is_of_floats and leaps):
        return math.inf
    return STEEP if facts.rounds and not (facts.ring or facts.writes) else 0.0


def _is_product(node: Node) -> bool:
    """A product of floats of 32 bits or fewer, be it written as a sum."""
    if not node.types[0].dtype.is_float or node.types[0].dtype.itemsize > 4:
        return False
    return node.op in PRODUCTS or (node.op.name == "sum" and _through_views(node.inputs[0]).op.name == "mul")


def _through_views(node: Node) -> Node:
    while node.op.facts.view or node.op.name == "cast":
        node = node.inputs[0]
    return node
