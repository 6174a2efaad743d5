"""placement: the copies between devices that a choice of kernels causes, found before the graph is lowered.

Lowering inserts copies by the same rule (residency.py), in the same order of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensor_graphs.devices.device_registry import HOST
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import known_when_bound
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.paths.lower import schedule
from tensor_graphs.paths.residency import Whereabouts, arriving, handed_out, pieces_of, under_views

Crossing = tuple[Node, str, str]
"""(node of the value copied, device that it is copied from, device that it is copied to)."""


class Placement:
    """The nodes of a graph whose definitions are expanded. roots: the expanded roots, in the order of graph.roots."""

    def __init__(self, graph: Graph, roots: Sequence[Node]) -> None:
        names = [("output", n) for n in graph.outputs] + [("state", n) for n in graph.updates]
        self.roots = list(zip(names, roots, strict=True))
        self.order = schedule(roots)
        self.known = known_when_bound(self.order)
        self.pieces, self.arriving = pieces_of(self.order), arriving(self.order, roots)
        self.keys = {n: signature_of(n).key for n in self.order if n.op.kind != "leaf" and not n.op.facts.view}
        self.makers = {(kind, name): under_views(root) for (kind, name), root in self.roots}

    def crossings(self, on: Mapping[str, str]) -> list[Crossing]:
        """Return the copies between devices in a run, without those of values that depend on parameters alone (made at bind time).

        on: signature key -> device of the kernel that computes it.
        """
        where, copies = Whereabouts(self.pieces), list[Crossing]()

        def bring(node: Node, device: str) -> None:
            carrier = where.carrier(node, device)
            if carrier is not None:
                source = where.first(carrier)
                assert source is not None
                where.put(carrier, device)
                if carrier not in self.known:
                    copies.append((carrier, source, device))

        at = {key: HOST.name if maker.op.kind == "leaf" else on[self.keys[maker]] for key, maker in self.makers.items()}
        for node in self.order:
            if node.op.kind == "leaf":
                if node.op is not leaves.CONSTANT:
                    home = at.get(("state", str(node.attrs["name"]))) if node.op is leaves.STATE else self.arriving.get(node)
                    where.put(node, home or HOST.name)
            elif node.op is leaves.ITEM:
                device = where.first(node.inputs[0])
                assert device is not None
                where.put(node, device)
            elif node.op is leaves.COPY_TO:
                bring(node, str(node.attrs["device"]))
            elif not node.op.facts.view:
                device = on[self.keys[node]]
                for operand in node.inputs:
                    bring(operand, device)
                where.put(node, device)
        for (kind, name), root in self.roots:
            bring(root, at[kind, name] if kind == "state" else handed_out(root))
        return copies
