"""wide_statistics: compute sums of squares, the means subtracted before, and scalars derived from both in f64, for elements in f32.

    m = sum(x) / n                            m = sum(f64(x)) / n
    t = sum((x − m) · (x − m))         →      t = sum((f64(x) − m) · (f64(x) − m))
    y = (x − m) · rsqrt(t / n + eps)          y = (x − f32(m)) · f32(rsqrt(t / n + eps))

The square of an f32 is exact in f64. In f32 it is infinite from 2^64 on and loses digits below 2^-51, and rounding the sum of
nearly equal numbers loses digits of their differences (T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample
variance", 1983). A product of two vectors is summed in f64 where the squares of one of them are, as in a cosine; sums of other
products (dot, linear, attention) stay as they are.

Elements computed from a mean are computed in f64 and rounded once, so that a large mean costs no digits of the differences.

In: outputs of a definition in the ops that stages have.  Out: those outputs with casts, or unchanged where no squares are
summed.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.dtypes import f32, f64
from tensor_graphs.language.node import ArrayValue, Node, apply, consumers, rebuild, walk

DERIVED = frozenset({"add", "mul", "div", "reciprocal", "sqrt", "where", "reshape", "permute"})
"""ops that stay f64 where all of their operands are statistics or constants"""


def with_wide_statistics(outputs: Sequence[Node]) -> list[Node]:
    """Return the outputs with their statistics in f64."""
    statistics = _statistics(outputs)
    return rebuild(outputs, _Widened(statistics).replaced) if statistics else list(outputs)


def _statistics(outputs: Sequence[Node]) -> dict[Node, list[Node]]:
    """Return the statistics: sums of squares (and of products with a squared factor) that other nodes read, and the sums that these
    depend on. Each maps to the nodes from its summand to the product, which are computed in f64."""
    readers = consumers(outputs)
    summed = {node: _to_product(node.inputs[0]) for node in walk(outputs)
              if node.op.name == "sum" and node.dtype is f32 and readers[node]}
    products = {node: path[-1].inputs for node, path in summed.items() if path[-1].op.name == "mul"}
    squared = {a for a, b in products.values() if a is b}
    statistics = {node: summed[node] for node, factors in products.items() if not squared.isdisjoint(factors)}
    for node in walk(list(statistics)):
        if node in summed and node not in products:
            statistics[node] = []
    return statistics


def _to_product(x: Node) -> list[Node]:
    """Return the nodes from x down through views, paddings, selections and constant factors to one that is none of these."""
    path = [x]
    while True:
        if x.op.name == "mul" and any(_is_constant(i) for i in x.inputs):
            x = x.inputs[_is_constant(x.inputs[0])]
        elif x.op.facts.view or x.op.name == "pad":
            x = x.inputs[0]
        elif x.op.name == "where":
            x = x.inputs[1]
        else:
            return path
        path.append(x)


def _is_constant(x: Node) -> bool:
    while x.op.facts.view:
        x = x.inputs[0]
    return x.op is leaves.CONSTANT


class _Widened:
    """A rebuild of a definition's nodes, operands first, with the given statistics (see `_statistics`) in f64."""

    def __init__(self, statistics: dict[Node, list[Node]]) -> None:
        self.statistics = statistics
        self.summed = {node for path in statistics.values() for node in path}
        self.new: dict[Node, Node] = {}                             # of each node: what it becomes, in its own dtype
        self.wide: dict[Node, Node] = {}                            # of nodes of f32: the same in f64
        self.fixed: set[Node] = set()                               # nodes made of constants alone
        self.numbers: set[Node] = set()                             # statistics, what is made of them and constants, views of both

    def replaced(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op is leaves.CONSTANT or (inputs and all(i in self.fixed for i in node.inputs)):
            self.fixed.add(node)
        floats = [i for i in node.inputs if i.dtype.is_float]
        of_numbers = node.dtype is f32 and any(i in self.numbers for i in floats)
        derived = of_numbers and (node.op.name in DERIVED or node.op.facts.view) and all(
            i in self.numbers or i in self.fixed for i in floats)
        self.new[node] = apply(node.op, inputs, node.attrs) if inputs else node
        if derived or node in self.statistics:
            self.numbers.add(node)
        if derived or node in self.statistics or (of_numbers and node.op.name == "add"):
            self.wide[node] = self.applied(node)
            if not node.op.facts.view:                              # a view of what was rounded is as good
                self.new[node] = atomic.cast(self.wide[node], f32)
        return self.new[node]

    def applied(self, node: Node) -> Node:
        return apply(node.op, [self.in_f64(i) if i.dtype is f32 else self.new[i] for i in node.inputs], node.attrs)

    def in_f64(self, node: Node) -> Node:
        if node not in self.wide:
            self.wide[node] = self.computed(node)
        return self.wide[node]

    def computed(self, node: Node) -> Node:
        new = self.new[node]
        if node.op is leaves.CONSTANT and not isinstance(node.attrs["value"], ArrayValue):
            return apply(node.op, (), {**node.attrs, "dtype": f64})
        if node in self.summed or (node in self.fixed and node.inputs):
            return self.applied(node)
        narrower = node.op.name == "cast" and new.inputs[0].dtype.is_float and new.inputs[0].dtype.itemsize < f32.itemsize
        return atomic.cast(new.inputs[0] if narrower else new, f64)
