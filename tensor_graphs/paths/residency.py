"""residency: the devices on which each value lies, and what must be copied for a kernel to read it on its own.

Lowering inserts the copies by this rule, and the cost of a path counts them by it. A value is copied to a device at most once. A
view of a value is wherever the value is; so what came from a device is never copied back to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tensor_graphs.devices.known import HOST
from tensor_graphs.language import leaves
from tensor_graphs.language.node import Node


def viewed(node: Node) -> Node | None:
    """Return the value of which a node is a window; None for what has memory of its own (an output of several, too)."""
    return node.inputs[0] if node.op.facts.view and node.op is not leaves.ITEM else None


def under_views(node: Node) -> Node:
    """Return the leaf, or the node that a kernel computes, of which a node is a view."""
    while node.op.facts.view:
        node = node.inputs[0]
    return node


def pieces_of(nodes: Sequence[Node]) -> frozenset[Node]:
    """Return the nodes cut from a value that several of them cover."""
    asked = {node.inputs[0] for node in nodes if node.op is leaves.COPY_TO}
    cut: dict[Node, list[Node]] = {}
    for node in nodes:
        if node.op.name == "slice":
            cut.setdefault(node.inputs[0], []).append(node)
    return frozenset(piece for whole, pieces in cut.items() if _cover(whole, pieces) and not asked.intersection(pieces)
                     for piece in pieces)


def handed_out(root: Node) -> str:
    """Return the device on which a run hands out an output: the host, where the graph does not say copy_to."""
    return str(root.attrs["device"]) if root.op is leaves.COPY_TO else HOST.name


def arriving(nodes: Sequence[Node], roots: Iterable[Node]) -> dict[Node, str]:
    """Return the inputs that a run takes on another device than the host: those only read by copies to that one."""
    asked: dict[Node, set[str]] = {root: {HOST.name} for root in roots}
    for node in nodes:
        for operand in node.inputs:
            asked.setdefault(operand, set()).add(handed_out(node))
    return {n: min(where) for n, where in asked.items() if n.op is leaves.INPUT and len(where) == 1 and HOST.name not in where}


class Whereabouts:
    """The devices of the values so far; constants are on all. pieces: `pieces_of` all nodes that there will be."""

    def __init__(self, pieces: Collection[Node] = ()) -> None:
        self._on: dict[Node, dict[str, None]] = {}
        self._pieces = pieces

    def put(self, node: Node, device: str) -> None:
        self._on.setdefault(node, {})[device] = None

    def has(self, node: Node, device: str) -> bool:
        """Return whether a node can be read there without a copy between devices."""
        at: Node | None = node
        while at is not None:
            if device in self._on.get(at, ()) or at.op is leaves.CONSTANT:
                return True
            at = viewed(at)
        return False

    def first(self, node: Node) -> str | None:
        """Return the device on which a node was computed, or for which the graph asks; None for a constant."""
        at: Node | None = node
        while at is not None:
            if at.op is leaves.COPY_TO and self.has(at, at.attrs["device"]):
                return str(at.attrs["device"])
            if at in self._on:
                return next(iter(self._on[at]))
            at = viewed(at)
        return None

    def carrier(self, node: Node, device: str) -> Node | None:
        """Return the value to copy so that a node can be read on a device; None where none has to be.

        A slice is copied as it is; but where several slices have as many elements as their value, that is copied, once, unless one
        of them is the operand of a copy_to. Of another view the viewed value is copied: it has no more elements, and maybe more
        views."""
        if self.has(node, device):
            return None
        at = node
        while (under := viewed(at)) is not None and (at.op.name != "slice" or at in self._pieces):
            at = under
        return at


def _cover(whole: Node, pieces: Sequence[Node]) -> bool:
    """Return whether several pieces have as many elements as what they are cut from."""
    size, have = whole.type.size(), sum((piece.type.size() for piece in pieces[1:]), pieces[0].type.size())
    return len(pieces) > 1 and (have >= size if isinstance(size, int) and isinstance(have, int) else have == size)
