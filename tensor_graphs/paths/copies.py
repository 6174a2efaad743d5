"""copies: which values of a graph are not contiguous, and which of them a kernel has copied before it reads them.

What an op computes is contiguous; a view of it may have gaps, be turned or be repeated. Lowering decides the same way (lower.py),
buffer by buffer and device by device; here no more is asked than what prices need.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tensor_graphs.kernels.kernel import Kernel, Spec
from tensor_graphs.kernels.strides import contiguous_strides
from tensor_graphs.language import leaves
from tensor_graphs.language.node import Node, TensorType
from tensor_graphs.paths.lower import Operand, taken, window_of

NOWHERE = -1
"""the buffer of a value that has none yet"""


def dense(t: TensorType) -> Operand:
    return Operand(NOWHERE, 0, t.shape, contiguous_strides(t.shape), t.dtype)


def apart(same: Mapping[Node, Node], known: Collection[Node] = ()) -> dict[Node, Operand]:
    """How the values lie that are not contiguous, of nodes (each with the first that is alike), operands before users. known: what
    is there when the graph is bound, copies of it too, so that it counts as contiguous."""
    found: dict[Node, Operand] = {}
    views: dict[tuple[Node, int], Operand | None] = {}              # of a view of what lies like this, None where it is contiguous
    for node, first in same.items():
        if node.op.facts.view and node not in known and node.op is not leaves.ITEM:
            under = found.get(node.inputs[0])
            key = first, id(under)
            if key not in views:
                views[key] = x if (x := seen(node, under)) is not None and not x.contiguous else None
            if (view := views[key]) is not None:
                found[node] = view
    return found


def forced(nodes: Collection[Node], lies: Mapping[Node, Operand]) -> list[TensorType]:
    """What is copied because a view of a value with gaps is none, as a reshape of what is repeated."""
    return [n.type for n in nodes if n.op.facts.view and n.op is not leaves.ITEM and n.inputs[0] in lies
            and seen(n, lies[n.inputs[0]]) is None]


def seen(view: Node, x: Operand | None) -> Operand | None:
    """How a view of x lies; of a contiguous value where there is none. None: it is copied, and contiguous."""
    return window_of(view, dense(view.inputs[0].type) if x is None else x)


def copied(kernel: Kernel, spec: Spec, operands: Mapping[int, Operand], seconds: Callable[[TensorType], float]) -> float:
    """Seconds of the copies that a kernel needs of operands that lie like this; all others are contiguous."""
    ins = [operands.get(i) or dense(t) for i, t in enumerate(spec.inputs)]
    return sum(seconds(TensorType(x.shape, x.dtype)) for x, lies in zip(ins, taken(kernel, spec, ins)[1], strict=True) if not lies)
