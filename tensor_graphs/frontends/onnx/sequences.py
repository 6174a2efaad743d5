"""sequences: rows of sequences of tensors, whose lengths are known while the graph is built, and of gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensor_graphs.frontends.onnx.call import Built, OnnxNode, row
from tensor_graphs.frontends.onnx.values import OnnxValue
from tensor_graphs.language import composites as c
from tensor_graphs.language.autodiff import grad
from tensor_graphs.language.dtypes import f32
from tensor_graphs.language.node import Node

MOST_PARTS = 4096
"""parts of a split"""


def _sequence(items: Sequence[OnnxValue]) -> OnnxValue:
    return OnnxValue(items[0].dtype if items else f32, items=list(items))


def _items(n: OnnxNode) -> list[OnnxValue]:
    items = n.value(0).items
    return n.refuse(f"operand 0 of {n.op} is no sequence") if items is None else list(items)


def _position(n: OnnxNode, index: int, default: int, last: int) -> int:
    """Return an operand that is a position in a sequence, counted from the front."""
    return n.places([int(n.scalar(index, default))], last + 1)[0]


row("SequenceEmpty", ignored=("dtype",))(lambda n: _sequence([]))
row("SequenceConstruct")(lambda n: _sequence([n.value(i) for i in range(len(n.inputs))]))
row("SequenceLength")(lambda n: np.array(len(_items(n))))
row("SequenceAt")(lambda n: _items(n)[_position(n, 1, 0, len(_items(n)) - 1)])


@row("SequenceInsert", "SequenceErase")
def _changed(n: OnnxNode) -> Built:
    items = _items(n)
    if n.op == "SequenceErase":
        items.pop(_position(n, 1, -1, len(items) - 1))
    elif not n.has(2) or int(n.scalar(2)) == len(items):
        items.append(n.value(1))
    else:
        items.insert(_position(n, 2, 0, len(items) - 1), n.value(1))
    return _sequence(items)


@row("ConcatFromSequence")
def _joined(n: OnnxNode) -> Node:
    nodes, new = [item.node() for item in _items(n)], n.get("new_axis", 0)
    axis = n.axis(0, nodes[0].rank + new)
    return c.stack(*nodes, axis=axis) if new else c.concat(*nodes, axis=axis) if len(nodes) > 1 else nodes[0]


@row("SplitToSequence")
def _split(n: OnnxNode) -> Built:
    x, axis, keep = n.x(), n.axis(0), n.get("keepdims", 1)
    size, parts = n.static_size(x.shape[axis]), n.ints(1) if n.has(1) else [1]
    if not n.has(1) or n.known(1).ndim == 0:             # parts of one size, of which the last may be shorter
        if not 0 < -(-size // max(parts[0], 1)) <= MOST_PARTS:
            n.refuse(f"a split of {size} elements into parts of {parts[0]}")
        parts = [min(parts[0], size - start) for start in range(0, size, parts[0])]
    whole = (slice(None),) * axis
    return _sequence([OnnxValue.of(y if keep or n.has(1) else y[(*whole, 0)]) for y in c.split(x, tuple(parts), axis=axis)])


@row("Gradient", domain="ai.onnx.preview.training")
def _gradient(n: OnnxNode) -> Built:
    """Return the gradients of the sum of the tensor named `y` with respect to those named `xs`."""
    names, result = n.get("xs"), n.get("y")
    if n.get("zs") or result not in n.scope:
        n.refuse("Gradient with constants `zs`, or of a tensor that is computed after it")
    return grad(n.scope[result].node().sum(), [n.x(i) for i in range(len(names))])
