"""narrow: matrix products with bf16 parameters computed in bf16, which is faster on processors that multiply bf16 directly.

Numeric class: reassociating, as in widen.py: in real mode a cast between floats is the identity.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.composites.products import linear
from tensor_graphs.language.dtypes import bf16
from tensor_graphs.language.errors import written_at
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, apply, walk
from tensor_graphs.rewrites.passes.result import PassResult
from tensor_graphs.rewrites.passes.widen import expanded_by_library, last_steps, written_out
from tensor_graphs.rewrites.rule import REASSOCIATING


def narrow(graph: Graph) -> PassResult:
    """Return the graph in which a `linear` of a wider value with a bf16 parameter matrix rounds its input and its result to bf16.

    Before: well typed. After: well typed; the same names, types and dims of inputs, parameters, states and outputs. A graph without
    such products is returned unchanged. A product that only views lead from to outputs is unchanged, too: rounding could make
    several likelihoods equal to the largest.

    >>> from tensor_graphs.language.composites import softmax
    >>> from tensor_graphs.language.graph import graph as make_graph
    >>> x, w = leaves.input("x", (2, 4)), leaves.parameter("w", (3, 4), bf16)
    >>> [f"{n.op.name} {n.type}" for n in narrow(make_graph(softmax(linear(x, w)))).graph.nodes if n.op.kind != "leaf"]
    ['cast bf16[2, 4]', 'linear bf16[2, 3]', 'cast f32[2, 3]', 'softmax f32[2, 3]']
    """
    expanded = written_out(graph)
    values = _values(expanded)
    if all(values[node] is node for node in expanded.roots):
        return PassResult(graph)
    images = {n: values[e] for n, e in zip(graph.nodes, expanded_by_library(graph.nodes), strict=True) if e in values}
    return PassResult(expanded.with_roots([values[root] for root in expanded.roots]), images, REASSOCIATING)


def narrowed_values(graph: Graph, nodes: Sequence[Node]) -> list[Node | None]:
    """Return the node that computes each node's value in `narrow(graph)`; None for a node that is not in the graph."""
    values = _values(written_out(graph))
    return [values.get(node) for node in expanded_by_library(nodes)]


def _values(graph: Graph) -> dict[Node, Node]:
    last = last_steps(graph)
    values: dict[Node, Node] = {}
    for node in walk(graph.roots):
        inputs = [values[i] for i in node.inputs]
        with written_at(node.location):
            if node.op is linear and node not in last and node.dtype.itemsize > bf16.itemsize and _is_narrow(node.inputs[1]):
                product = apply(node.op, [atomic.cast(inputs[0], bf16), *inputs[1:]], node.attrs)
                values[node] = atomic.cast(product, node.dtype)
            else:
                values[node] = node if inputs == list(node.inputs) else apply(node.op, inputs, node.attrs)
    return values


def _is_narrow(weight: Node) -> bool:
    """Return whether a weight is a bf16 parameter, or a view of one."""
    while weight.op.facts.view:
        weight = weight.inputs[0]
    return weight.op is leaves.PARAMETER and weight.dtype == bf16
