"""whereabouts: on which devices each value lies, and what must be copied for a kernel to read it on its own.

One rule for lowering, which inserts the copies, and for the price of a path, which counts them. A value is copied to a device at
most once. A view of a value is there wherever the value is; so what came from a device is never copied back to it.
"""

from __future__ import annotations

from tensor_graphs.language import leaves
from tensor_graphs.language.node import Node


def viewed(node: Node) -> Node | None:
    """The value of which a node is a window; None for what has memory of its own (an output of several, too)."""
    return node.inputs[0] if node.op.facts.view and node.op is not leaves.ITEM else None


class Whereabouts:
    """Which values are where so far. Constants are everywhere: each device has its own."""

    def __init__(self) -> None:
        self._on: dict[Node, dict[str, None]] = {}

    def put(self, node: Node, device: str) -> None:
        self._on.setdefault(node, {})[device] = None

    def has(self, node: Node, device: str) -> bool:
        """Whether it can be read there without a copy between devices."""
        at: Node | None = node
        while at is not None:
            if device in self._on.get(at, ()) or at.op is leaves.CONSTANT:
                return True
            at = viewed(at)
        return False

    def first(self, node: Node) -> str | None:
        """The device on which it was made; None for a constant."""
        at: Node | None = node
        while at is not None:
            if at in self._on:
                return next(iter(self._on[at]))
            at = viewed(at)
        return None

    def carrier(self, node: Node, device: str) -> Node | None:
        """The value to copy so that a node can be read on a device; None where nothing has to be.

        A cut is copied as it is; of the other views what they show, which has no more elements and may be shown in other ways too.
        """
        if self.has(node, device):
            return None
        at = node
        while (under := viewed(at)) is not None and at.op.name != "slice":
            at = under
        return at
