"""border_copies: copies to a device right behind inputs and right before outputs, taken off while a graph is rewritten.

Rewriting knows values and no devices, and a copy in the midst of a graph keeps its neighbours apart. A copy at a border does not:
it says where a value comes from or goes to, and the graph between is rewritten as any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from tensor_graphs.choice.graph_forms import PreparedGraph
from tensor_graphs.language import leaves
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, apply, consumers, rebuild


@dataclass
class Interior:
    """graph: the one between the copies. images: node of the graph with copies -> node of this one. devices: of each copied leaf.
    outputs: devices of copied roots, by their number."""

    graph: Graph
    images: Mapping[Node, Node] = field(repr=False)
    devices: Mapping[Node, str]
    outputs: Mapping[int, str]
    _restored: WeakKeyDictionary[Graph, tuple[Graph, Mapping[Node, Node]]] = field(default_factory=WeakKeyDictionary, repr=False)

    def restored(self, prepared: PreparedGraph) -> PreparedGraph:
        """Return what became of the graph between the copies, with the copies."""
        if prepared.graph not in self._restored:
            nodes = prepared.graph.nodes
            images = dict(zip(nodes, rebuild(nodes, self._copied), strict=True))
            roots = [images[root] for root in prepared.graph.roots]
            for i, device in self.outputs.items():
                roots[i] = apply(leaves.COPY_TO, (roots[i],), {"device": device})
            self._restored[prepared.graph] = prepared.graph.with_roots(roots), images
        graph, after = self._restored[prepared.graph]
        images = {old: after.get(new := prepared.images.get(node, node), new) for old, node in self.images.items()}
        return PreparedGraph(graph, prepared.note, prepared.parts, {old: new for old, new in images.items() if old is not new})

    def _copied(self, node: Node, inputs: tuple[Node, ...]) -> Node | None:
        return apply(leaves.COPY_TO, (node,), {"device": self.devices[node]}) if node in self.devices else None


def interior(graph: Graph) -> Interior | None:
    """Return the graph between copies at its borders; None where it has no copies, or some amid other nodes."""
    copies = [node for node in graph.nodes if node.op is leaves.COPY_TO]
    users = consumers(graph.roots) if copies else {}
    last = {node for node in copies if not users[node]}
    first = {node for node in copies if node not in last and node.inputs[0].op.kind == "leaf"}
    devices = {node.inputs[0]: str(node.attrs["device"]) for node in first}
    if not copies or len(last) + len(first) < len(copies) or len(devices) < len(first):
        return None
    if any(len(users[leaf]) > 1 for leaf in devices) or not devices.keys().isdisjoint(graph.roots):
        return None                                                 # a leaf that is read on two devices

    def taken_off(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        return inputs[0] if node.op is leaves.COPY_TO else None

    images = dict(zip(graph.nodes, rebuild(graph.nodes, taken_off), strict=True))
    outputs = {i: str(root.attrs["device"]) for i, root in enumerate(graph.roots) if root in last}
    return Interior(graph.with_roots([images[root] for root in graph.roots]), images, devices, outputs)
