"""read_blocks: products with `dequantize` of a weight become `block_linear`, whose kernels read the bytes as they are.

    linear(x, dequantize(w, format="Q8_0"))                     →   block_linear(x, w, format="Q8_0")
    linear(rounded(x, to="int8"), dequantize(w, format="Q8_0")) →   rounded_block_linear(x, w, format="Q8_0", to="int8")

`linear_argmax`, the largest of such a product, becomes the largest of that. `embedding` chooses rows of bytes, and dequantises
those.
"""

from __future__ import annotations

from collections import Counter

from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.composites.arithmetic import mul
from tensor_graphs.language.composites.blocks import block_linear, dequantize, rounded_block_linear
from tensor_graphs.language.composites.indexing import argmax, embedding, linear_argmax
from tensor_graphs.language.composites.products import linear
from tensor_graphs.language.composites.rounded import LEVELS, rounded
from tensor_graphs.language.dtypes import f32
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, rebuild
from tensor_graphs.rewrites.passes.result import PassResult


def read_blocks(graph: Graph) -> PassResult:
    """Return the graph in which bytes of blocks are read where their numbers are used; the very same graph without such uses.
    Numeric class: bitwise, but that zeros may have another sign in a row of an embedding whose index is out of range."""
    counts = Counter[str]()

    def replaced(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        new = _replaced(node, inputs)
        counts[node.op.name] += new is not None
        return new

    images = dict(zip(graph.nodes, rebuild(graph.nodes, replaced), strict=True))
    if not counts.total():
        return PassResult(graph)
    note = f"{sum(n.op in (block_linear, rounded_block_linear) for n in images.values())} products of blocks"
    changed = {n: image for n, image in images.items() if image is not n}
    return PassResult(graph.with_roots([images[r] for r in graph.roots]), changed, note=note)


def _replaced(node: Node, inputs: tuple[Node, ...]) -> Node | None:
    if node.op is linear and _is_product_of_blocks(*inputs[:2]):
        return _product(*inputs)
    if node.op is leaves.ITEM and inputs[0].op is linear_argmax and _is_product_of_blocks(*inputs[0].inputs):
        out = _product(*inputs[0].inputs)
        return argmax(out) if node.attrs["index"] else atomic.reduce_max(out, (out.rank - 1,))
    if node.op is embedding and inputs[0].op is dequantize:
        table, ids = inputs
        rows: Node = dequantize(atomic.gather(table.inputs[0], ids, axis=0), format=table.attrs["format"])
        rows = atomic.cast(rows, node.dtype)
        return rows if node.attrs["scale"] == 1.0 else mul(rows, node.attrs["scale"])
    return None


def _product(x: Node, weight: Node, *bias: Node) -> Node:
    operands, format = (weight.inputs[0], *bias), weight.attrs["format"]
    if x.op is rounded and x.attrs["to"] in LEVELS:
        out: Node = rounded_block_linear(x.inputs[0], *operands, format=format, to=x.attrs["to"])
    else:
        out = block_linear(x, *operands, format=format)
    return out


def _is_product_of_blocks(x: Node, weight: Node) -> bool:
    return weight.op is dequantize and x.dtype is f32
