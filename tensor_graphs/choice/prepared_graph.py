"""prepared_graph: what prepare.py gives: the graph to compile, and what was done to the one that was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node


@dataclass(frozen=True)
class PreparedGraph:
    """The graph to compile, and what was done to the written one, for people ("" where nothing was). parts: those formed.
    images: what a node of the graph as it was written, or as it was before parts were formed, has become, where that is another
    one; a node whose value is no longer made has none."""

    graph: Graph
    note: str = ""
    parts: str = ""
    images: Mapping[Node, Node] = field(default_factory=dict, repr=False, compare=False)
