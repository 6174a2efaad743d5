"""residency: the devices that hold each value, and the copies needed before a kernel can read its operands on its own device.

Both lowering, which inserts the copies, and the cost of a path, which counts them, use these rules. A value is copied to a device
at most once. A view of a value is on every device that holds the value, so a value is never copied back to its source device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tensor_graphs.devices.device_registry import HOST
from tensor_graphs.language import leaves
from tensor_graphs.language.node import Node


def viewed(node: Node) -> Node | None:
    """Return the operand that a view node reads; None for a node with memory of its own (outputs of a multi-output op included)."""
    return node.inputs[0] if node.op.facts.view and node.op is not leaves.ITEM else None


def under_views(node: Node) -> Node:
    """Return the leaf or the computed node that a chain of views starts from."""
    while node.op.facts.view:
        node = node.inputs[0]
    return node


def pieces_of(nodes: Sequence[Node]) -> frozenset[Node]:
    """Return the slices of values that several slices together cover."""
    asked = {node.inputs[0] for node in nodes if node.op is leaves.COPY_TO}
    cut: dict[Node, list[Node]] = {}
    for node in nodes:
        if node.op.name == "slice":
            cut.setdefault(node.inputs[0], []).append(node)
    return frozenset(piece for whole, pieces in cut.items() if _cover(whole, pieces) and not asked.intersection(pieces)
                     for piece in pieces)


def handed_out(root: Node) -> str:
    """Return the device on which a run returns an output: the host, unless the output is a copy_to."""
    return str(root.attrs["device"]) if root.op is leaves.COPY_TO else HOST.name


def arriving(nodes: Sequence[Node], roots: Iterable[Node]) -> dict[Node, str]:
    """Return input -> device for the inputs that a run takes on another device: inputs read only by copies to that one device."""
    asked: dict[Node, set[str]] = {root: {HOST.name} for root in roots}
    for node in nodes:
        for operand in node.inputs:
            asked.setdefault(operand, set()).add(handed_out(node))
    return {n: min(where) for n, where in asked.items() if n.op is leaves.INPUT and len(where) == 1 and HOST.name not in where}


class Whereabouts:
    """The devices that hold each value so far; constants are on all. pieces: result of `pieces_of` for all nodes of the graph."""

    def __init__(self, pieces: Collection[Node] = ()) -> None:
        self._on: dict[Node, dict[str, None]] = {}
        self._pieces = pieces

    def put(self, node: Node, device: str) -> None:
        self._on.setdefault(node, {})[device] = None

    def has(self, node: Node, device: str) -> bool:
        """Return True if a node can be read on a device without a copy between devices."""
        at: Node | None = node
        while at is not None:
            if device in self._on.get(at, ()) or at.op is leaves.CONSTANT:
                return True
            at = viewed(at)
        return False

    def first(self, node: Node) -> str | None:
        """Return the device that a node was computed on, or that its copy_to requests; None for a constant."""
        at: Node | None = node
        while at is not None:
            if at.op is leaves.COPY_TO and self.has(at, at.attrs["device"]):
                return str(at.attrs["device"])
            if at in self._on:
                return next(iter(self._on[at]))
            at = viewed(at)
        return None

    def carrier(self, node: Node, device: str) -> Node | None:
        """Return the value to copy so that a node can be read on a device; None where no copy is needed. A slice is copied alone.
        But if several slices together have as many elements as the sliced value, that value is copied once instead, unless one of
        them is the operand of a copy_to. For other views the viewed value is copied: it has no more elements, and may have more
        views."""
        if self.has(node, device):
            return None
        at = node
        while (under := viewed(at)) is not None and (at.op.name != "slice" or at in self._pieces):
            at = under
        return at


def _cover(whole: Node, pieces: Sequence[Node]) -> bool:
    """Return True if several slices together have at least as many elements as the value that they are cut from."""
    size, have = whole.type.size(), sum((piece.type.size() for piece in pieces[1:]), pieces[0].type.size())
    return len(pieces) > 1 and (have >= size if isinstance(size, int) and isinstance(have, int) else have == size)
