"""copies: the values of a graph that are not contiguous, and the copies that kernels need before they can read them.

The result of a kernel is contiguous; a view of it may have gaps, be transposed or be repeated. Lowering (lower.py) applies the same
rules to each buffer and device; this module computes only what costs need.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tensor_graphs.kernels.kernel import Kernel, Spec
from tensor_graphs.kernels.strides import contiguous_strides
from tensor_graphs.language import leaves
from tensor_graphs.language.node import Node, TensorType
from tensor_graphs.paths.lower import Operand, read_in_place, window_of

NOWHERE = -1
"""Buffer number of a value that has no buffer yet."""


def dense(t: TensorType) -> Operand:
    return Operand(NOWHERE, 0, t.shape, contiguous_strides(t.shape), t.dtype)


def strided(same: Mapping[Node, Node], bound: Collection[Node] = ()) -> dict[Node, Operand]:
    """Return the layouts of the values that are not contiguous. same: node -> the first alike (equal op, attributes and types),
    operands before users. bound: nodes computed when the graph is bound; they count as contiguous: copies of them are made at bind
    time too."""
    layouts: dict[Node, Operand] = {}
    views: dict[tuple[Node, int], Operand | None] = {}              # by the alike and the operand's layout, None where contiguous
    for node, first in same.items():
        if node.op.facts.view and node not in bound and node.op is not leaves.ITEM:
            under = layouts.get(node.inputs[0])
            key = first, id(under)
            if key not in views:
                views[key] = x if (x := layout_of(node, under)) is not None and not x.contiguous else None
            if (view := views[key]) is not None:
                layouts[node] = view
    return layouts


def forced(nodes: Collection[Node], layouts: Mapping[Node, Operand]) -> list[TensorType]:
    """Return the types of the views that are copies, as no strides express them: for example a reshape of a repeated value."""
    return [n.type for n in nodes if n.op.facts.view and n.op is not leaves.ITEM and n.inputs[0] in layouts
            and layout_of(n, layouts[n.inputs[0]]) is None]


def layout_of(view: Node, x: Operand | None) -> Operand | None:
    """Return the layout of a view of x (None: of a contiguous value). Return None where the view is a contiguous copy."""
    return window_of(view, dense(view.inputs[0].type) if x is None else x)


def copied(kernel: Kernel, spec: Spec, operands: Mapping[int, Operand], seconds: Callable[[TensorType], float]) -> float:
    """Return the seconds of the copies that a kernel needs of its operands. operands: position -> layout, if not contiguous."""
    ins = [operands.get(i) or dense(t) for i, t in enumerate(spec.inputs)]
    reads = read_in_place(kernel, spec, ins)[1]
    return sum(seconds(TensorType(x.shape, x.dtype)) for x, in_place in zip(ins, reads, strict=True) if not in_place)
