"""parts_in: the parts of a graph."""

from __future__ import annotations

from collections import Counter

from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.graph import Graph


def parts_in(graph: Graph) -> Counter[PartOp]:
    """Return how many nodes of the graph are each part, in the graph's order."""
    return Counter(n.op for n in graph.nodes if isinstance(n.op, PartOp))
